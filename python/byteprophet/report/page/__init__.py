"""A run, an optimisation or a simulated job as one page that needs nothing but a browser."""

from byteprophet.report.page.build import render, write_page
from byteprophet.report.page.optimization import write_optimization
from byteprophet.report.page.simulation import Shown, write_simulation

__all__ = ["Shown", "render", "write_optimization", "write_page", "write_simulation"]
