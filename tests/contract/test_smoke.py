import pytest

from redis_world import RedisWorld

pytestmark = pytest.mark.everywhere


async def test_a_run_is_created_and_read(world: RedisWorld) -> None:
    result = await world.events.create(
        None,
        {
            "eventType": "run_created",
            "eventData": {"deploymentId": "d", "workflowName": "w", "input": b"\x00"},
        },
    )
    assert result.run is not None
    assert await world.runs.get(result.run.run_id) == result.run
