from forebay.drive import LocalDrive
from forebay.drive.faults import FaultPlan, FaultyDrive
from forebay.drive.testing import IDENTITY, DriveTests


class TestLocalDrive(DriveTests):
    def open_drive(self, folder):
        if not folder.exists():
            LocalDrive.format(str(folder), IDENTITY)
        return LocalDrive.open(str(folder), IDENTITY, reserve_bytes=0)


class TestFaultyDriveWithoutFaults(DriveTests):
    def open_drive(self, folder):
        return FaultyDrive(TestLocalDrive.open_drive(self, folder), FaultPlan())
