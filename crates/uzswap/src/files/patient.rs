//! Writes to an output that may be a pipe.

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// A file to write to. Where it is a pipe, each wait for its reader has an end.
#[derive(Debug)]
pub struct PatientFile {
    file: File,
    patience: Duration,
}

impl PatientFile {
    /// Waits so long at most each time that a reader has to make room.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn new(file: File, patience: Duration) -> io::Result<PatientFile> {
        fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
        Ok(PatientFile { file, patience })
    }

    /// Writes all bytes.
    ///
    /// # Errors
    ///
    /// The kernel's; `TimedOut` where the reader took nothing. A part may be written then.
    pub fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let time = Timespec::try_from(self.patience).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], Some(&time)) {
            Ok(0) => {
                let text = format!("its reader took nothing for {:?}", self.patience);
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The same as of a [`File`].
    ///
    /// # Errors
    ///
    /// The kernel's; of a pipe always.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    fn pipe(patience: Duration) -> (io::PipeReader, PatientFile) {
        let (reader, writer) = io::pipe().unwrap();
        let file = PatientFile::new(OwnedFd::from(writer).into(), patience).unwrap();
        (reader, file)
    }

    #[test]
    fn a_slow_reader_gets_all_and_a_reader_that_takes_nothing_ends_it() {
        let (mut reader, mut file) = pipe(Duration::from_secs(100));
        let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
        let read = std::thread::spawn(move || {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).map(|_| read)
        });
        file.write_all(&bytes).unwrap();
        drop(file);
        assert!(read.join().unwrap().unwrap() == bytes);

        let (reader, mut file) = pipe(Duration::from_millis(20));
        let error = file.write_all(&bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "its reader took nothing for 20ms");
        drop(reader);
        assert_eq!(file.write_all(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
