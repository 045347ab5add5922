"""Runs a container's command with the injected runtime: `python3 launch.py COMMAND [ARGUMENT ...]`.

This file is next to the folder `python` in the runtime image. Any Python can read it, so that one that is too old gets
a message instead of a SyntaxError; everything else is in elasticjob_runtime.launch.
"""

import os
import sys

OLDEST = (3, 10)
UNUSABLE = 72  # ExitCode.RUNTIME_UNUSABLE


def refuse():
    text = "elasticjob: the runtime needs Python {}.{} or newer, but {} of the image is {}.{}: ".format(  # noqa: UP032 - Python 2 has no f-strings
        OLDEST[0], OLDEST[1], sys.executable, sys.version_info[0], sys.version_info[1]
    )
    text += "use another image, or name a newer Python of this image in the container's command\n"
    sys.stderr.write(text)
    try:
        with open(os.environ.get("ELASTICJOB_TERMINATION_LOG", "/dev/termination-log"), "w") as message:
            message.write(text)
    except EnvironmentError:  # noqa: UP024 - Python 2 raises IOError
        pass  # the log has it
    sys.exit(UNUSABLE)


if sys.version_info < OLDEST:
    refuse()
# The folder of this script comes first in the search path; nothing in it is to be imported.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python")

from elasticjob_runtime.launch import main  # noqa: E402

main()
