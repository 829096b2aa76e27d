"""Functions that other processes cannot import: of a notebook, which is code without a file, and of a bare script."""

import subprocess
import sys
import textwrap

from files import write_numbers

CELL = """
    import sys
    import midepoch as me

    def double(row):
        return {"twice": row["x"] * 2}

    loader = me.Loader(me.read(sys.argv[1]).map(double), batch_size=5, num_workers=1, multiprocessing_context=METHOD)
    print(sum(len(batch["twice"]) for batch in loader))
"""


def run(command, code, method, path):
    text = textwrap.dedent(code).replace("METHOD", repr(method))
    done = subprocess.run([sys.executable, *command(text), str(path)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_function_of_a_cell_is_named_with_what_to_do(tmp_path):
    path = write_numbers(tmp_path / "a.arrow", 0, 10)
    said = run(lambda text: ["-c", text], CELL, "spawn", path)
    assert "The function double was defined in a notebook or a shell" in said
    assert "Write it into a module, such as functions.py, and import it, or pass num_workers=0" in said
    assert run(lambda text: ["-c", text], CELL, "fork", path).split() == ["10"]


def test_a_script_without_a_guard_is_named_with_what_to_do(tmp_path):
    path, script = write_numbers(tmp_path / "a.arrow", 0, 10), tmp_path / "script.py"

    def command(text):
        script.write_text(text)
        return [str(script)]

    said = run(command, CELL, "spawn", path)
    assert "put what it does under if __name__ == '__main__'" in said
