"""What the live line says."""

from dmvi.training import Silent


class Noted(Silent):
    """Keeps what it is told."""

    def __init__(self):
        self.texts: list[str] = []

    def note(self, text):
        self.texts.append(text)


def test_a_stage_says_what_is_known_of_it():
    noted = Noted()
    noted.stage("warm start")
    noted.stage("warm start", elbo=-31.4159)
    noted.stage("warm start", elbo=-31.4159, left=12.4)
    assert noted.texts == [
        "warm start",
        "warm start  ELBO -31.416",
        "warm start  ELBO -31.416  time left 12 s",
    ]
