#!/usr/bin/env python3
"""The chat page in a headless Chromium: a conversation of two turns, stopping an answer, what is shown of it.

    server_page.py EBB MODEL_DIR

Python's own library only: Chromium is driven through its debugging pipe. Skipped (77) where there is no Chromium."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time


class Browser:
    def __init__(self, program, folder):
        to_child, self.to = os.pipe()
        self.of, from_child = os.pipe()

        def wire():  # the pipe is descriptors 3 and 4 of the browser
            a, b = os.dup(to_child), os.dup(from_child)
            os.dup2(a, 3)
            os.dup2(b, 4)
        self.process = subprocess.Popen([program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                                         "--disable-background-networking", "--no-first-run", f"--user-data-dir={folder}",
                                         "--remote-debugging-pipe"], close_fds=False, preexec_fn=wire, stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self.held, self.number, self.session, self.said = b"", 0, None, []

    def message(self):
        while b"\0" not in self.held:
            more = os.read(self.of, 65536)
            if not more:
                raise SystemExit("the browser has gone")
            self.held += more
        text, self.held = self.held.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.number += 1
        call = {"id": self.number, "method": method, "params": params}
        if self.session:
            call["sessionId"] = self.session
        os.write(self.to, json.dumps(call).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            entry = answer.get("params", {}).get("entry", {})
            if answer.get("method") == "Runtime.exceptionThrown" or entry.get("level") == "error":
                self.said.append(json.dumps(answer["params"])[:300])

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(domain + ".enable")
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.value(expression):
                return
            time.sleep(0.05)
        raise AssertionError(f"not so after {seconds} s: {expression}")


def say(browser, text):
    browser.value(f"$('text').value = {json.dumps(text)}; $('send').click()")


def run(browser, url):
    browser.open(url + "/")
    browser.until("$('model').textContent.includes('leap8')")
    say(browser, "Tell me of Alice <b>now</b>")
    browser.until("document.querySelectorAll('.note').length === 1 && $('send').textContent === 'Send'")
    assert browser.value("document.querySelector('.user').textContent") == "Tell me of Alice <b>now</b>"
    assert browser.value("document.querySelectorAll('.user b').length") == 0
    note = browser.value("document.querySelector('.note').textContent")
    assert re.search(r"[0-9.]+ tokens/s · [0-9]+ tokens · prompt [0-9]+, of which [0-9]+ cached · first token after", note), note
    say(browser, "And then?")
    browser.until("document.querySelectorAll('.note').length === 2 && $('send').textContent === 'Send'")
    assert browser.value("messages.map(m => m.role).join()") == "user,assistant,user,assistant"
    assert browser.value("document.querySelectorAll('.assistant').length") == 2
    # an answer that is stopped: the page says so, and the server is free again
    browser.value("answer = (original => body => original({...body, max_tokens: 3000, ignore_eos: true}))(answer)")
    say(browser, "Go on for ever")
    browser.until("document.querySelectorAll('.assistant').length === 3 && document.querySelectorAll('.assistant')[2].textContent")
    browser.until("$('state').querySelector('i').style.width !== '0%' && $('state').querySelector('i').style.width !== ''")
    browser.value("$('send').click()")
    browser.until("document.querySelectorAll('.error').length === 1 && $('send').textContent === 'Send'")
    browser.value("fetch('/health').then(r => r.json()).then(h => window.health = h)")
    browser.until("fetch('/health').then(r => r.json()).then(h => window.health = h), window.health && window.health.running === 0")
    browser.value("$('reset').click()")
    assert browser.value("$('talk').children.length") == 0 and browser.value("messages.length") == 0
    assert not browser.said, browser.said


def main():
    ebb, model = sys.argv[1:3]
    program = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
    if not program:
        print("server_page: no Chromium here, skipped")
        return 77
    server = subprocess.Popen([ebb, "serve", "-m", model, "--port", "0", "--state", "leap8", "--threads", "2"], stderr=subprocess.PIPE, text=True)
    url = next(m.group(1) for m in (re.match(r"(http://\S+)/ ", line) for line in server.stderr) if m)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, folder)
        try:
            run(browser, url)
            print("server_page: all good")
        finally:
            browser.process.kill()
            browser.process.wait()
            server.terminate()
    return server.wait(60)


if __name__ == "__main__":
    sys.exit(main())
