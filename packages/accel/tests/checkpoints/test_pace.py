import threading

from accel.checkpoints.pace import Pace


def test_the_writer_rests_until_somebody_waits():
    pace = Pace(share=1e-9)  # would rest for years
    resting = threading.Thread(target=pace.rest, daemon=True)
    resting.start()
    resting.join(timeout=0.05)
    assert resting.is_alive()
    pace.hurry()
    resting.join(timeout=20)
    assert not resting.is_alive()
    pace.rest()  # and no more from here on


def test_who_may_work_all_the_time_does_not_rest():
    Pace(share=1).rest()
