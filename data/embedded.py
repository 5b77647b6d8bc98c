"""The models that come with the package: a small dense one, and its sparse twin."""

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "models"


@dataclass(frozen=True)
class EmbeddedModel:
    """A model in the package."""

    name: str
    about: str

    @property
    def folder(self) -> Path:
        """Where it is."""
        return _FOLDER / self.name


MODELS: dict[str, EmbeddedModel] = {
    model.name: model
    for model in (
        EmbeddedModel("tiny", "dense: a GPT-2 of 6 layers x 8 heads that does the four tasks"),
        EmbeddedModel("tiny-sparse", "its sparse twin: the same, post-trained with gates"),
    )
}
"""By the name that --model takes."""
