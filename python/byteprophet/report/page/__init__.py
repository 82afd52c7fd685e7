"""A recorded run, or an optimisation, as one page that needs nothing but a browser."""

from byteprophet.report.page.build import render, write_page
from byteprophet.report.page.optimization import write_optimization

__all__ = ["render", "write_optimization", "write_page"]
