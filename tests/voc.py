"""Small data sets in the layout of Pascal VOC: red cats and blue dogs on black."""

import io
import tarfile
import zipfile

import numpy as np
import tensorflow as tf

BOX = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"


def annotation(objects, width=64, height=32):
    """Returns VOC's XML of (name, difficult, left, top, right, bottom) in pixels."""
    rows = (
        f"<object><name>{name}</name><difficult>{difficult}</difficult>"
        f"{BOX.format(*box)}</object>"
        for name, difficult, *box in objects
    )
    size = f"<size><width>{width}</width><height>{height}</height></size>"
    return f"<annotation>{size}{''.join(rows)}</annotation>".encode()


def jpeg(objects, width=64, height=32):
    """Returns an image, red and blue by the name of the objects on black."""
    pixels = np.zeros((height, width, 3), np.uint8)
    for name, _, left, top, right, bottom in objects:
        pixels[top:bottom, left:right, 0 if name == "cat" else 2] = 255
    return tf.io.encode_jpeg(pixels).numpy()


def data_set(images, lists, folder="VOC2007/"):
    """Returns the files of a data set, of objects by the name of the image."""
    files = {}
    for name, objects in images.items():
        files[f"{folder}Annotations/{name}.xml"] = annotation(objects)
        files[f"{folder}JPEGImages/{name}.jpg"] = jpeg(objects)
    for name, listed in lists.items():
        files[f"{folder}ImageSets/Main/{name}.txt"] = "\n".join(listed).encode()
    return files


def write(path, files):
    """Writes an archive of the kind that the name says, and returns its path."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, f"w:{path.suffix[1:]}".replace("tar", "")) as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return str(path)


def write_squares(path):
    """Writes six images, four to train on: a cat on the left, a dog on the right."""
    images = {
        str(i): [("cat", 0, i, 4, 16 + i, 20), ("dog", 0, 40, 8, 56, 24 + i)]
        for i in range(6)
    }
    lists = {"all": "012345", "trainval": "0123", "test": "45"}
    return write(path, data_set(images, lists))
