"""What others use in the place of redis-world, each behind the same small interface."""
