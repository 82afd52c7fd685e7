"""A recorded run as one page that needs nothing but a browser."""

from byteprophet.report.page.build import render, write_page

__all__ = ["render", "write_page"]
