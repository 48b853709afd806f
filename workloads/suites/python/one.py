"""Runs unittest's tests of one name (a module, a class or a method), and appends what became of each to RESULTS."""
import faulthandler
import os
import sys
import unittest

from test import support

PATIENCE_S = 60


class Result(unittest.TestResult):
    """Writes each verdict as soon as it is there: a run that does not end has said what was before."""

    def say(self, verdict, test):
        with open(os.environ["RESULTS"], "a", encoding="utf-8") as results:
            results.write(f"{verdict} {test.id()}\n")

    def startTest(self, test):
        super().startTest(test)
        self.failed = False
        self.say("fail", test)
        # One that hangs is a failure, and the end of its module.
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()

    def addSuccess(self, test):
        if not self.failed:
            self.say("pass", test)

    def addExpectedFailure(self, test, err):
        self.addSuccess(test)

    def addSkip(self, test, reason):
        self.say("skip", test)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)

    def addError(self, test, err):
        self.addFailure(test, err)

    def addFailure(self, test, err):
        self.failed = True
        super().addFailure(test, err)
        print(test.id(), self._exc_info_to_string(err, test), flush=True)


if __name__ == "__main__":
    # multiprocessing imports this file in what it spawns.
    support.use_resources = []
    support.verbose = False
    suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    suite.run(Result())
    # Threads that a failed test left behind must not hold the next one up.
    os._exit(0)
