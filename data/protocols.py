"""Protocols: named sets of choices, so that runs and figures can say by one word what they ask.

A run's scores are by one ablation. So a protocol with several makes a run for each, called STEM-ABLATION; what is
compared of a model is then the one with the smaller circuit.
"""

from dataclasses import dataclass

from ..errors import one_of


@dataclass(frozen=True)
class Protocol:
    """A named set of choices."""

    name: str
    ablations: tuple[str, ...]
    """A run each; the first one counts where no circuit is the smaller one."""
    rankings: tuple[str, ...]
    """Of the circuits that are measured; the first one is that of figures."""
    asks: str
    """What it asks, to go on a sentence that names it."""

    def ranking(self, level: str) -> str:
        """The ranking of figures at a level; attention edges belong to a prompt, and have no other.

        >>> PROTOCOLS["contrast"].ranking("edge"), PROTOCOLS["contrast"].ranking("attention")
        ('task', 'prompt')
        """
        return "prompt" if level == "attention" else self.rankings[0]


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "published",
            ("zero", "mean"),
            ("prompt", "task"),
            "what the model needs at all (units carry zero, or their mean, unless they are kept)",
        ),
        Protocol(
            "contrast",
            ("corrupt",),
            ("task", "prompt"),
            "what makes the difference between two prompts (units carry what they carry on the corrupted prompt, "
            "unless they are kept)",
        ),
    )
}
"""All of them, by name."""


def find_protocol(name: str) -> Protocol:
    """A protocol by name.

    >>> find_protocol("published").ablations
    ('zero', 'mean')
    """
    return PROTOCOLS[one_of("protocol", name, list(PROTOCOLS))]
