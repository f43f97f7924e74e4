"""Answers for the questions of `accel config`."""


class ByText:
    """Answers the questions whose text has one of these words, everything else with the default."""

    def __init__(self, answers):
        self.answers = answers

    def text(self, question, *, default):
        return next((answer for words, answer in self.answers.items() if words in question), default)

    def choice(self, question, labels, *, default):
        return list(labels).index(self.text(question, default=labels[default]))

    def say(self, line):
        raise AssertionError(f"an answer was refused: {line}")
