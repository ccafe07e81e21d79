"""Opens a report in a real browser, headless, and says what is seen there."""

import html
import json
import re
import shutil
import subprocess

import pytest

# Told by the page itself once it is laid out: what went wrong, what it asked for, what one sees.
LOOK = """<script>
const errors = [];
addEventListener("error", event => errors.push(String(event.message)), true);
addEventListener("load", () => {
    const sizes = [...document.querySelectorAll("figure svg")].map(one => {
        const box = one.getBoundingClientRect();
        return [box.width, box.height];
    });
    const pictures = [...document.querySelectorAll("figure img")].map(one => one.naturalWidth);
    const requests = performance.getEntriesByType("resource").map(one => one.name);
    const wide = document.documentElement.scrollWidth > innerWidth;
    const rows = () => [...document.querySelectorAll("table.filtered tbody tr")];
    const heads = [...document.querySelectorAll("table.filtered th button")];
    const column = heads.findIndex(one => one.textContent == "images/s");
    const sorted = [1, 2].map(() => {
        heads[column].click();
        return rows().map(row => row.cells[column].textContent.trim());
    });
    const words = document.querySelector(".filter input");
    words.value = "single done";
    words.dispatchEvent(new Event("input"));
    const left = rows().filter(row => !row.hidden).map(row => row.textContent);
    document.title = JSON.stringify({errors, requests, pictures, sizes, wide, sorted, left});
});
</script>"""
NAMES = ("chromium", "chromium-browser", "google-chrome")


def shows_all(report, folder):
    """Assert that a browser shows every figure of a report, and asks nobody for anything.

    Skips the test where there is no browser; `make test` installs one where it may.
    """
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip("No browser here, so no report is opened in one: apt-get install chromium")
    page = folder / "report.html"
    page.write_text(report.html.read_text().replace("<head>", f"<head>{LOOK}"))
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1100,900"),
            *("--no-first-run", "--disable-background-networking", "--disable-sync"),
            *("--disable-component-update", f"--user-data-dir={folder}/profile"),
            *("--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert "<title>" in done.stdout, done.stderr
    traced = json.loads(html.unescape(re.search("<title>(.*?)</title>", done.stdout)[1]))
    assert (traced["errors"], traced["requests"]) == ([], [])
    assert not traced["wide"]  # Nothing but tables needs to be scrolled sideways.
    upwards, downwards = (
        [float(cell) for cell in column if re.match(r"\d", cell)] for column in traced["sorted"]
    )
    assert upwards == sorted(upwards) == downwards[::-1]
    assert len(upwards) > 1
    assert traced["left"]
    assert all("single" in row and "done" in row for row in traced["left"])
    assert len(traced["sizes"]) == len(report.figures)
    assert len(traced["pictures"]) == len(report.cases)
    assert all(width > 1000 for width in traced["pictures"])
    assert all(width > 500 and height > 200 for width, height in traced["sizes"])
