"""What a case has to tell, beyond that nothing escaped."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Story:
    """What the device said of an attack, and whether it refused it; `tried` is what the attack was."""

    refused: bool
    said: str
    tried: str = ""

    def __str__(self) -> str:
        return f"{self.tried}: {'refused: ' if self.refused else ''}{self.said}"
