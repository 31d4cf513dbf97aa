"""Pytest plugins of this project's own tests."""
