"""What happens when a script wraps its model in DistributedDataParallel (``_autoload.py``).

If ``BYTEPROPHET_STRATEGY`` names a file, the model gets the buckets of that strategy. If the job is
recorded, so is the model. A strategy that does not fit ends the process with one line and status 2,
because the script knows nothing of byteprophet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from byteprophet.errors import UserError, one_line
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.record import record_unasked
from byteprophet.torch.retuning.given_ddp_strategy import construct_with


def construct(
    plain: Callable[..., None], model: DistributedDataParallel, *arguments: Any, **options: Any
) -> None:
    """Construct ``model`` by ``plain``, its class' own constructor."""
    try:
        settings = RuntimeSettings.from_environment()
        if settings.strategy:
            construct_with(settings, plain, model, arguments, options)
        else:
            plain(model, *arguments, **options)
        record_unasked(model)
    except UserError as error:
        print(f"byteprophet: error: {one_line(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
