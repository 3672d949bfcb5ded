"""The frozen backbone in torch and timm: what is trained on, exported, and compared with."""
