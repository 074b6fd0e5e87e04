//! The enemy: a program of the run that speaks the helpers' protocol to attack the supervisor.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl, ftruncate};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with, socketpair,
};
use uzswap::random::SplitMix64;
use uzswap_preload::protocol::{Message, kind};
use uzswap_sys::foreign::Foreign;
use uzswap_sys::peer;
use uzswap_sys::userfaultfd;

const PAGE: usize = 4096;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Attacks of an enemy, each a test of its own.
pub(crate) const ATTACKS: [&str; 13] = [
    "truncate",
    "scribble",
    "late",
    "flood",
    "silent",
    "descriptors",
    "blocking",
    "secrets",
    "forged",
    "many",
    "idle",
    "lingering",
    "random",
];

/// A generator whose seed replays a run.
struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next_word()
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }
}

/// A connection to the supervisor, and all that came by it.
struct Enemy {
    socket: OwnedFd,
    got: VecDeque<OwnedFd>,
}

impl Enemy {
    fn connect() -> io::Result<Enemy> {
        let path = std::env::var_os("ENEMY_SOCKET").expect("it is run by uzswap");
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Enemy { socket, got: VecDeque::new() })
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.socket, bytes, descriptors)
    }

    fn say<const N: usize>(&self, kind: u32, words: [u64; N]) -> io::Result<()> {
        self.send(&Message::new(kind, words).to_bytes(), &[])
    }

    /// The next message; `None` where the supervisor has closed the connection.
    fn hear(&mut self) -> Option<Message> {
        let timeout = Timespec::try_from(PATIENCE).unwrap();
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        assert_ne!(poll(&mut ready, Some(&timeout)), Ok(0), "the supervisor stands still");
        let mut bytes = [0; 256];
        let received = peer::receive(&self.socket, &mut bytes).ok()?;
        self.got.extend(received.descriptors.into_iter().map(Foreign::into_inner));
        Message::from_bytes(&bytes[..received.bytes])
    }

    /// Says hello as a program that has just started; what it was welcomed with.
    fn hello(&mut self) -> Option<Message> {
        self.hello_by(kind::HELLO_EXEC)
    }

    fn hello_by(&mut self, hello: u32) -> Option<Message> {
        self.say(hello, [0x10_0000, 0x1_0000]).ok()?;
        self.hear().filter(|message| message.kind != kind::END)
    }

    /// The whole handshake, with a userfaultfd of this process: the supervisor takes it for a
    /// helper from then on.
    fn become_helper(&mut self) -> bool {
        self.become_helper_by(kind::HELLO_EXEC)
    }

    fn become_helper_by(&mut self, hello: u32) -> bool {
        let _ = rustix::thread::set_name(c"uzswap-helper");
        let Some(welcome) = self.hello_by(hello) else { return false };
        let staging = staging(welcome.words[0] as usize);
        let Ok(uffd) = userfaultfd::create(false) else { return false };
        let words = [staging.as_ptr().addr() as u64, staging.len() as u64, 0, 0];
        let ready = Message::new(kind::READY, words).to_bytes();
        let sent = self.send(&ready, &[uffd.as_fd()]).is_ok();
        self.got.push_back(uffd);
        sent
    }
}

/// Memory that is said to be staging, the same for all connections: each would take a page more.
fn staging(bytes: usize) -> &'static [u8] {
    static MEMORY: OnceLock<Vec<u8>> = OnceLock::new();
    let memory = MEMORY.get_or_init(|| vec![0; bytes + PAGE]);
    let skipped = memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr();
    &memory[skipped..skipped + bytes]
}

fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut extra = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        extra.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[io::IoSlice::new(bytes)], &mut extra, flags)?;
    Ok(())
}

/// This program again, as an enemy, for so many seconds.
pub(crate) fn run(attack: &str, seconds: u64, seed: u64) -> ExitCode {
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random(SplitMix64::new(seed));
    let mut rounds = 0;
    while Instant::now() < until {
        rounds += 1;
        match attack {
            "truncate" => truncate(),
            "scribble" => scribble(&mut random, until),
            "late" => late(until),
            "flood" => flood(),
            "silent" => silent(until),
            "descriptors" => descriptors(),
            "blocking" => blocking(until),
            "secrets" => secrets(&mut random),
            "forged" => forged(),
            "gone" => return gone(until),
            "many" => many(until),
            "idle" => idle(until),
            "lingering" => lingering(),
            "returning" => returning(),
            "random" => anything(&mut random),
            other => panic!("no attack is called {other}"),
        }
    }
    println!("{attack}: {rounds} rounds");
    ExitCode::SUCCESS
}

/// Cuts the memory that the supervisor maps.
fn truncate() {
    let Ok(mut enemy) = Enemy::connect() else { return };
    if enemy.hello().is_none() {
        return;
    }
    let control = enemy.got.pop_front().expect("control memory comes along");
    for size in [0, 1, 4096] {
        assert!(ftruncate(&control, size).is_err(), "the control memory was cut to {size}");
    }
    // A hole in it reads as zeros.
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let _ = rustix::fs::fallocate(&control, hole, 0, 1 << 20);
}

/// A helper that writes anything to the control memory, and answers what it likes.
fn scribble(random: &mut Random, until: Instant) {
    let Ok(mut enemy) = Enemy::connect() else { return };
    if !enemy.become_helper() {
        return;
    }
    let control = enemy.got.pop_front().expect("control memory comes along");
    while Instant::now() < until {
        let (value, at) = (random.next(), random.below(20 << 10));
        if rustix::io::pwrite(&control, &value.to_ne_bytes(), at).is_err()
            || enemy.say(if value & 1 == 0 { kind::DONE } else { kind::READY }, []).is_err()
        {
            return; // it was found out
        }
        std::thread::sleep(Duration::from_micros(value % 500));
    }
}

/// A helper with most memory of all, that answers each command just before it is given up, and has
/// moved nothing.
fn late(until: Instant) {
    let Ok(mut enemy) = Enemy::connect() else { return };
    if !enemy.become_helper() {
        return;
    }
    let mut memory = vec![0_u8; 30 << 20];
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    let control = enemy.got.pop_front().expect("control memory comes along");
    let words = |at: u64| {
        let mut word = [0; 4];
        rustix::io::pread(&control, &mut word, at).map(|_| word)
    };
    // See `Control`: the bell, and what is done is what was given.
    let (bell_at, given_at, done_at): (u64, u64, u64) = (28, 8, 12);
    let mut rung = [0; 4];
    while Instant::now() < until {
        match words(bell_at) {
            Ok(bell) if bell == rung => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Ok(bell) => rung = bell,
            Err(_) => return,
        }
        std::thread::sleep(Duration::from_millis(95));
        let Ok(given) = words(given_at) else { return };
        let _ = rustix::io::pwrite(&control, &given, done_at);
        if enemy.say(kind::DONE, []).is_err() {
            return;
        }
    }
    std::hint::black_box(memory);
}

/// Says hello and reads nothing.
fn flood() {
    let Ok(enemy) = Enemy::connect() else { return };
    for _ in 0..10_000 {
        if enemy.say(kind::HELLO_EXEC, [0x10_0000, 0x1_0000]).is_err() {
            return;
        }
    }
}

/// Connects as often as it may, and says nothing.
fn silent(until: Instant) {
    let mut all = Vec::new();
    while Instant::now() < until {
        match Enemy::connect() {
            Ok(enemy) if all.len() < 900 => all.push(enemy),
            Ok(_) => all.clear(),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Descriptors of the wrong kind, too many, and where none is due.
fn descriptors() {
    let null = File::open("/dev/null").unwrap();
    let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
    let (reader, writer) = io::pipe().unwrap();
    let packets = SocketType::SEQPACKET;
    let pair = socketpair(AddressFamily::UNIX, packets, SocketFlags::CLOEXEC, None).unwrap();
    for fd in [null.as_fd(), zero.as_fd(), reader.as_fd(), writer.as_fd(), pair.0.as_fd()] {
        let Ok(mut enemy) = Enemy::connect() else { return };
        if enemy.hello().is_none() {
            continue;
        }
        let ready = Message::new(kind::READY, [0x20_0000, 4097 << 12, 0, 0]).to_bytes();
        let _ = enemy.send(&ready, &[fd]);
        assert!(enemy.hear().is_none_or(|message| message.kind == kind::END));
        // Through the door: what is no connection, nothing, and too many.
        if let Some(door) = enemy.got.get(1) {
            let connect = Message::new(kind::CONNECT, []).to_bytes();
            let _ = send(door, &connect, &[fd]);
            let _ = send(door, &connect, &[fd; 5]);
            let _ = send(door, &connect, &[]);
            let _ = send(door, &[1, 2, 3], &[fd]);
        }
        let Ok(enemy) = Enemy::connect() else { return };
        let hello = Message::new(kind::HELLO_EXEC, [0x10_0000, 0x1_0000]).to_bytes();
        let _ = enemy.send(&hello, &[fd; 2]);
    }
}

/// A socket whose close waits for half a minute, as its peer reads nothing.
fn lingering_socket() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    let wait = Some(Duration::from_secs(30));
    rustix::net::sockopt::set_socket_linger(&socket, wait).unwrap();
    (socket.into(), peer)
}

/// Makes the supervisor the last to close such a socket. The enemy sends it with a message that
/// brings none, with the one that brings a userfaultfd, through the door, and with an answer to a
/// command.
fn lingering() {
    let send_one = |to: &OwnedFd, message: Message| {
        let (socket, peer) = lingering_socket();
        std::mem::forget(peer); // its end would end the wait
        let _ = send(to, &message.to_bytes(), &[socket.as_fd()]);
        // This process may be the last to close it.
        std::thread::spawn(move || drop(socket));
    };
    let Ok(enemy) = Enemy::connect() else { return };
    send_one(&enemy.socket, Message::new(kind::HELLO_EXEC, [0x10_0000, 0x1_0000]));
    let Ok(mut enemy) = Enemy::connect() else { return };
    if enemy.hello().is_some() {
        send_one(&enemy.socket, Message::new(kind::READY, [0x20_0000, 4097 << 12, 0, 0]));
    }
    let Ok(mut enemy) = Enemy::connect() else { return };
    if enemy.become_helper() {
        send_one(&enemy.socket, Message::new(kind::DONE, []));
        if let Some(door) = enemy.got.get(1) {
            send_one(door, Message::new(kind::CONNECT, []));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    drop(enemy);
    std::thread::sleep(Duration::from_millis(500));
}

/// A helper that has the supervisor wait where it reads events, and takes these away.
fn blocking(until: Instant) {
    let Ok(mut enemy) = Enemy::connect() else { return };
    if !enemy.become_helper() {
        return;
    }
    let uffd = enemy.got.pop_back().expect("it was kept");
    while Instant::now() < until {
        let _ = fcntl_setfl(&uffd, OFlags::empty());
        std::thread::sleep(Duration::from_micros(100));
        let _ = fcntl_setfl(&uffd, OFlags::NONBLOCK);
        let _ = rustix::io::read(&uffd, &mut [0; 64]);
    }
}

/// One process that would be many: it has one helper, and counts once.
fn many(until: Instant) {
    let mut all: Vec<Enemy> = (0..4).filter_map(|_| Enemy::connect().ok()).collect();
    let ready = all.iter_mut().filter_map(|enemy| enemy.become_helper().then_some(enemy));
    let mut ready: Vec<&mut Enemy> = ready.collect();
    // The first is one still.
    for other in ready.iter_mut().skip(1) {
        let answer = other.hear();
        assert!(answer.is_none_or(|message| message.kind == kind::END), "{answer:?}");
    }
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
}

/// One process whose helpers end and come again, with a userfaultfd each: few are kept.
fn returning() {
    let mut kept = Vec::new();
    for _ in 0..20 {
        let Ok(mut enemy) = Enemy::connect() else { return };
        if !enemy.become_helper() {
            continue;
        }
        let mut ready = [PollFd::new(&enemy.socket, PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        let is_refused = poll(&mut ready, Some(&wait)).is_ok_and(|ready| ready > 0);
        let Enemy { socket, got } = enemy;
        if !is_refused {
            kept.push(got);
        }
        drop(socket);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(kept.len() <= 3, "{} userfaultfds were taken", kept.len());
}

/// A helper that says that it has done all, and has moved nothing: pages do not leave.
fn idle(until: Instant) {
    let Ok(mut enemy) = Enemy::connect() else { return };
    if !enemy.become_helper() {
        return;
    }
    let control = enemy.got.pop_front().expect("control memory comes along");
    // Memory of its own, which does not leave.
    let memory = std::hint::black_box(vec![1_u8; 30 << 20]);
    while Instant::now() < until {
        let mut ready = [PollFd::new(&enemy.socket, PollFlags::IN)];
        let _ = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
        if peer::receive(&enemy.socket, &mut [0; 64]).is_ok() {
            let mut numbers = [0; 16]; // lock, changes, given, done
            let _ = rustix::io::pread(&control, &mut numbers, 0);
            let _ = rustix::io::pwrite(&control, &numbers[8..12], 12);
            let _ = enemy.say(kind::DONE, []);
        }
    }
    drop(memory);
}

/// A program says that it is a fork of its parent, all of whose memory would be protected for it.
fn forged() {
    let Ok(mut enemy) = Enemy::connect() else { return };
    let ready = enemy.become_helper_by(kind::HELLO_FORK);
    let answer = ready.then(|| enemy.hear()).flatten();
    assert!(answer.is_none_or(|message| message.kind == kind::END), "{answer:?}");
}

/// A thread becomes the helper and ends; its connection and the memory of its process stay.
fn gone(until: Instant) -> ExitCode {
    let helper = std::thread::spawn(|| {
        let mut enemy = Enemy::connect().expect("it is of the run");
        assert!(enemy.become_helper());
        std::thread::sleep(Duration::from_millis(300));
        enemy
    });
    let enemy = helper.join().unwrap();
    let memory = std::hint::black_box(vec![1_u8; 80 << 20]);
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
    drop((enemy, memory));
    ExitCode::SUCCESS
}

/// Claims to be the child of a fork: nobody gets another's userfaultfd.
fn secrets(random: &mut Random) {
    let Ok(mut enemy) = Enemy::connect() else { return };
    let words = [0x10_0000, 0x1_0000, random.next() | 1, random.next()];
    if enemy.say(kind::HELLO_FORK, words).is_ok() {
        let answer = enemy.hear();
        assert!(answer.is_none_or(|message| message.kind == kind::END), "{answer:?}");
    }
}

/// Every message in every state, with any words, of any length, and ends in the middle.
fn anything(random: &mut Random) {
    let Ok(mut enemy) = Enemy::connect() else { return };
    for _ in 0..random.below(6) {
        let words = [(); 4].map(|()| match random.below(6) {
            0 => 0,
            1 => 4097 << 12,
            2 => u64::MAX,
            3 => 0x7f00_0000_0000,
            4 => u64::MAX << 12,
            _ => random.next() << 12,
        });
        let kind = random.below(14) as u32;
        let mut bytes = Message::new(kind, words).to_bytes().to_vec();
        match random.below(8) {
            0 => bytes.truncate(random.below(40) as usize),
            1 => bytes.extend_from_slice(&[7; 100]),
            2 => bytes[random.below(40) as usize] ^= 1 << random.below(8),
            _ => {}
        }
        let uffd = userfaultfd::create(false).ok();
        let uffd = uffd.iter().filter(|_| random.below(2) == 0);
        let all: Vec<_> = uffd.map(AsFd::as_fd).collect();
        if enemy.send(&bytes, &all).is_err() {
            return;
        }
        if random.below(2) == 0 {
            let mut ready = [PollFd::new(&enemy.socket, PollFlags::IN)];
            let _ = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
            let _ = peer::receive(&enemy.socket, &mut [0; 256]);
        }
    }
    if random.below(4) == 0 && enemy.hello().is_some() {
        enemy.got.clear();
    }
}
