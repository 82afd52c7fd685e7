"""Prints which BytePS libraries the plug-ins are built for.

identity.py VERSION FRAMEWORK=LIBRARY...
"""

import hashlib
import json
import sys
from pathlib import Path

version, *libraries = sys.argv[1:]
digests = {}
for library in libraries:
    framework, _, path = library.partition("=")
    digests[framework] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
json.dump({"version": version, "c_lib_sha256": digests}, sys.stdout)
