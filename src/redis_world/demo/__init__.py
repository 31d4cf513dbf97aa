"""The demo: an order workflow of the Python SDK, shown as it runs."""
