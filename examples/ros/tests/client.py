#!/usr/bin/python3
"""Publishes pictures, one at a time, and compares the node's diagnostics with the answers of examples/cpp-vision."""

import json
import pathlib
import queue
import struct
import time
import unittest

import rospy
import rostest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from PIL import Image as Picture
from sensor_msgs.msg import Image

# Seconds until an answer must have come.
PATIENCE = 10.0


def single(number):
    """Returns a number rounded to f32, as a float."""
    return struct.unpack("<f", struct.pack("<f", float(number)))[0]


def image(encoding, width, height, rows, step):
    """Returns a message with these rows of bytes, each filled up to `step` bytes."""
    message = Image(encoding=encoding, width=width, height=height, step=step)
    message.data = b"".join(row.ljust(step, b"\xa5") for row in rows)
    return message


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        rospy.init_node("client")
        with open(rospy.get_param("~answers")) as lines:
            answers = [json.loads(line) for line in lines]
        # The last line is the summary.
        cls.answers = {pathlib.Path(line["file"]).name: line for line in answers[:-1]}
        cls.pictures = sorted(pathlib.Path(rospy.get_param("~pictures")).glob("*.png"))
        cls.rate = float(rospy.get_param("~rate"))
        cls.received = queue.Queue()
        cls.stamp = 0
        cls.subscriber = rospy.Subscriber("diagnostics", DiagnosticArray, cls.received.put)
        cls.publisher = rospy.Publisher("image", Image, queue_size=1)
        end = time.monotonic() + PATIENCE
        while cls.publisher.get_num_connections() == 0 or cls.subscriber.get_num_connections() == 0:
            if time.monotonic() > end:
                raise AssertionError("the node does not connect")
            time.sleep(0.01)

    def ask(self, message):
        """Publishes a picture and returns the status that answers it, and its values."""
        Answers.stamp += 1
        message.header.stamp = rospy.Time(self.stamp, 5)
        self.publisher.publish(message)
        end = time.monotonic() + PATIENCE
        while True:
            status = self.received.get(timeout=max(0.001, end - time.monotonic())).status[0]
            values = {value.key: value.value for value in status.values}
            if values["picture_stamp"] == "%d.%09d" % (self.stamp, 5):
                return status, values

    def rows(self, path):
        """Returns the size of a picture and its rows of grey bytes."""
        picture = Picture.open(str(path))
        self.assertEqual(picture.mode, "L")
        width, height = picture.size
        grey = picture.tobytes()
        return width, height, [grey[y * width : (y + 1) * width] for y in range(height)]

    def same(self, path, message):
        """Requires the answer of examples/cpp-vision for this picture, bit for bit, with a certificate."""
        status, values = self.ask(message)
        wanted = self.answers[path.name]
        self.assertIn(status.level, (DiagnosticStatus.OK, DiagnosticStatus.WARN), status.message)
        self.assertEqual(values["error"], "")
        self.assertEqual(values["class"], str(wanted["class"]), path.name)
        self.assertEqual(
            [single(score) for score in values["scores"].split()],
            [single(score) for score in wanted["scores"]],
            path.name,
        )
        self.assertEqual(values["backend"], wanted["backend"])
        self.assertEqual(values["certificate"], "rigorous")
        self.assertGreater(float(values["bound"]), 0.0)
        self.assertLess(float(values["bound"]), 0.01)
        self.assertGreater(int(values["latency_us"]), 0)

    def test_every_picture_has_the_answer_of_the_example(self):
        self.assertGreater(len(self.pictures), 0)
        self.assertEqual(len(self.pictures), len(self.answers))
        for path in self.pictures:
            width, height, rows = self.rows(path)
            self.same(path, image("mono8", width, height, rows, width))

    def test_every_encoding_has_the_same_answer(self):
        path = self.pictures[0]
        width, height, rows = self.rows(path)
        for encoding, channels in (("mono8", 1), ("rgb8", 3), ("bgr8", 3), ("rgba8", 4), ("bgra8", 4)):
            wide = [b"".join(bytes([grey]) * channels for grey in row) for row in rows]
            self.same(path, image(encoding, width, height, wide, width * channels + 7))

    def test_a_picture_that_cannot_be_read_is_an_error(self):
        path = self.pictures[0]
        width, height, rows = self.rows(path)
        short = image("mono8", width, height, rows[:-1], width)
        for message, error, names in (
            (image("bayer_rggb8", width, height, rows, width), "encoding", "bayer_rggb8"),
            (image("mono8", 0, height, rows, width), "width", "allowed: 1 to 8192"),
            (image("mono8", width, 0, rows, width), "height", "allowed: 1 to 8192"),
            (image("mono8", width, height, rows, width - 1), "step", "allowed: %d or more" % width),
            (short, "data", "allowed: %d or more" % (width * height)),
        ):
            status, values = self.ask(message)
            self.assertEqual(status.level, DiagnosticStatus.ERROR, error)
            self.assertEqual(values["error"], error)
            self.assertIn(names, status.message)
            self.assertEqual(values["class"], "")
        # The node goes on.
        self.same(path, image("mono8", width, height, rows, width))

    def test_periods_keep_the_rate(self):
        seconds = 2.0
        while not self.received.empty():
            self.received.get()
        start = time.monotonic()
        messages = []
        while time.monotonic() < start + seconds:
            messages.append(self.received.get(timeout=PATIENCE))
        found, wanted = len(messages) / seconds, self.rate
        # Periods that pass on a busy machine are skipped and counted; none is made up.
        self.assertLessEqual(found, 1.1 * wanted + 1.0)
        self.assertGreaterEqual(found, 0.5 * wanted)
        for message in messages:
            self.assertEqual(message.status[0].level, DiagnosticStatus.STALE)


if __name__ == "__main__":
    rostest.rosrun("elsa_ros", "answers", Answers)
