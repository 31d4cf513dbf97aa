"""`python -m redis_world` is the command `redis-world`."""

from redis_world.cli import main

if __name__ == "__main__":
    main()
