"""Frames from folders, videos and addresses."""

import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge.errors import ConfigError, ImageError, MissingExtraError, SourceError
from pluto_edge.observe import sources
from pluto_edge.observe.sources import Frame, is_live, open_source, paced, public_name
from pluto_edge.preprocess import open_image

CLASSES = ("cat", "dog")


def write_images(folder: Path, values: dict[str, int]) -> None:
    """Grey images, each of its own value."""
    for name, value in values.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 7), (value, value, value)).save(folder / name)


def test_a_folder_comes_in_the_order_of_its_names(tmp_path: Path) -> None:
    write_images(tmp_path, {f"{i:02}.png": i for i in (5, 1, 9, 3, 7)})
    frames = list(open_source(str(tmp_path), CLASSES, seed=4))
    assert [int(f.image[0, 0, 0]) for f in frames] == [1, 3, 5, 7, 9]
    assert frames[0].image.shape == (7, 9, 3) and frames[0].image.dtype == np.uint8
    assert {f.truth for f in frames} == {None}


def test_folders_of_classes_give_the_truth_in_a_seeded_order(tmp_path: Path) -> None:
    write_images(tmp_path, {f"cat/{i}.png": i for i in range(10)} | {f"dog/{i}.png": 100 + i for i in range(10)})
    first, again, other = (list(open_source(str(tmp_path), CLASSES, seed)) for seed in (1, 1, 2))
    values = [int(f.image[0, 0, 0]) for f in first]
    assert [f.truth for f in first] == [int(v >= 100) for v in values]
    assert sorted(values) != values and sorted(values) == [*range(10), *range(100, 110)]
    assert values == [int(f.image[0, 0, 0]) for f in again] != [int(f.image[0, 0, 0]) for f in other]


def test_a_broken_image_ends_the_frames(tmp_path: Path) -> None:
    write_images(tmp_path, {"0.png": 0})
    (tmp_path / "1.png").write_bytes(b"x")
    frames = open_source(str(tmp_path), CLASSES)
    assert next(frames).image[0, 0, 0] == 0
    with pytest.raises(ImageError, match=r"1\.png: not a readable image"):
        next(frames)


def test_what_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        open_source(str(tmp_path / "absent.mp4"))
    with pytest.raises(ConfigError, match="holds no image"):
        next(open_source(str(tmp_path)))


def test_without_opencv_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtraError, match=r'pip install "pluto-edge\[camera\]"'):
        next(open_source("0"))


def test_names_keep_passwords_back() -> None:
    assert public_name("rtsp://me:secret@10.0.0.7:554/live?key=1") == "rtsp://10.0.0.7:554/live"
    assert public_name("rtsp://me:se@cret@10.0.0.7/live#part") == "rtsp://10.0.0.7/live"
    assert public_name("http://[::1]:80/x") == "http://[::1]:80/x"
    assert public_name("rtsp://10.0.0.7/user=me&password=secret/1") == "rtsp://10.0.0.7/…"
    assert (public_name("0"), public_name("clip.mp4")) == ("camera 0", "clip.mp4")


@pytest.mark.parametrize("rest", ["/live", "/live?key=hidden", "/a@b", "", "?key=hid@den/x", "#hidden/x@y"])
def test_whatever_is_in_the_password_no_part_of_it_is_shown(rest: str) -> None:
    """Such a password should be written with escapes, and often is not. Where it ends is then a guess."""
    for one, two, three in permutations("#/@?:", 3):
        shown = public_name(f"rtsp://me:LEFT{one}MIDDLE{two}{three}RIGHT@10.0.0.7{rest}")
        assert shown.startswith("rtsp://")
        assert not [w for w in ("LEFT", "MIDDLE", "RIGHT", "me:", "hid", "den") if w in shown]


def test_what_comes_before_an_address_is_not_shown() -> None:
    assert public_name("souphttpsrc user-id=me user-pw=secret location=http://10.0.0.7/x ! appsink") == "…"


def test_cameras_and_addresses_are_live(tmp_path: Path) -> None:
    assert is_live("0") and is_live("rtsp://x/y") and is_live("/dev/null")
    assert not is_live(str(tmp_path)) and not is_live("clip.mp4")


def test_paced_frames_come_on_their_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(sources, "perf_counter", lambda: now[0])
    monkeypatch.setattr(sources, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    frames, times = paced((Frame(np.zeros((1, 1, 3), np.uint8)) for _ in range(5)), 10), []
    for number, _ in enumerate(frames):
        times.append(now[0])
        if number == 1:
            now[0] += 0.25  # a slow consumer: the frames that are late by then come at once
    np.testing.assert_allclose(times, [100.0, 100.1, 100.35, 100.35, 100.4])


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Six frames, pure red to start with, then pure blue."""
    cv2 = pytest.importorskip("cv2")
    file = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter_fourcc(*"MJPG"), 10, (32, 16))
    for number in range(6):
        frame = np.zeros((16, 32, 3), np.uint8)
        frame[..., 2 if number < 3 else 0] = 255  # BGR
        writer.write(frame)
    writer.release()
    return file


def test_a_video_is_rgb_and_ends(clip: Path) -> None:
    frames = [f.image for f in open_source(str(clip))]
    assert [f.shape for f in frames] == [(16, 32, 3)] * 6
    assert [int(f.mean(axis=(0, 1)).argmax()) for f in frames] == [0, 0, 0, 2, 2, 2]
    assert frames[0].flags["C_CONTIGUOUS"]


def test_an_address_that_ends_is_lost(clip: Path) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(clip.parent)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        frames = open_source(f"http://127.0.0.1:{server.server_port}/clip.avi")
        for _ in range(6):
            next(frames)
        with pytest.raises(SourceError, match=r"clip\.avi: the camera is lost after 6 frames"):
            next(frames)
    finally:
        server.shutdown()
        server.server_close()


def test_what_opencv_cannot_open(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    (tmp_path / "x.mp4").write_bytes(b"not a video" * 100)
    with pytest.raises(SourceError, match=r"x\.mp4: OpenCV cannot open it; is it a video"):
        next(open_source(str(tmp_path / "x.mp4")))


def test_images_too_large_to_be_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16)
    with pytest.raises(ImageError, match=r"bomb\.png: not a readable image"):
        open_image(tmp_path / "bomb.png")
