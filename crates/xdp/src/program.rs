//! The program that the kernel runs on every frame that an interface receives. Pure: it is written here, instruction by
//! instruction, so that building needs no compiler for BPF; the kernel's verifier has the last word on it.
//!
//! It takes whole UDP datagrams to the addresses in a map, as long as they fit into a frame, and hands them to the
//! AF_XDP socket of the queue that they came by. Everything else goes on to the kernel as if there were no program: other
//! ports and addresses, fragments, IPv4 with options, IPv6 with extension headers, VLANs, jumbo frames, and everything at a queue without a
//! socket. For these the UDP socket of the same address is there.

use std::net::{IpAddr, SocketAddr};

/// Bytes of an entry of the map: address, IPv4 as mapped into IPv6, port, two bytes of zero.
pub(crate) const KEY_LEN: usize = 20;
/// Addresses that may be taken: those of one interface. Containers have dozens.
pub(crate) const KEYS_MAX: u32 = 256;

/// What the map calls an address.
pub(crate) fn key(address: SocketAddr) -> [u8; KEY_LEN] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut key = [0; KEY_LEN];
    key[..16].copy_from_slice(&ip.octets());
    key[16..18].copy_from_slice(&address.port().to_be_bytes());
    key
}

/// One instruction (RFC 9669 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    opcode: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

// RFC 9669 §4 and 5: classes, sizes, modes and operations, joined.
const LOAD_U8: u8 = 0x71;
const LOAD_U16: u8 = 0x69;
const LOAD_U32: u8 = 0x61;
const STORE_U16: u8 = 0x6b;
const STORE_U32: u8 = 0x63;
const STORE_ZERO_U64: u8 = 0x7a;
const MOVE: u8 = 0xbf;
const MOVE_IMMEDIATE: u8 = 0xb7;
const ADD_IMMEDIATE: u8 = 0x07;
const AND_IMMEDIATE: u8 = 0x57;
const LOAD_IMMEDIATE_64: u8 = 0x18;
const JUMP: u8 = 0x05;
const JUMP_EQUAL: u8 = 0x15;
const JUMP_NOT_EQUAL: u8 = 0x55;
const JUMP_GREATER: u8 = 0x25;
const JUMP_GREATER_REGISTER: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The source of a 64-bit immediate that is a map's descriptor (RFC 9669 §5.4, "map_by_fd").
const MAP_BY_FD: u8 = 1;

// linux/bpf.h: helpers, and what a program may answer.
const MAP_LOOKUP_ELEM: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const XDP_GET_BUFF_LEN: i32 = 188;
const XDP_PASS: i32 = 2;
// struct xdp_md
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

// Where fields are in a frame of Ethernet: IEEE 802.3, RFC 791, RFC 8200, RFC 768.
const ETHERTYPE: i16 = 12;
const IP: i16 = 14;
const V4_FRAGMENT: i16 = IP + 6;
const V4_PROTOCOL: i16 = IP + 9;
const V4_DESTINATION: i16 = IP + 16;
const V4_UDP: i16 = IP + 20;
const V6_NEXT_HEADER: i16 = IP + 6;
const V6_DESTINATION: i16 = IP + 24;
const V6_UDP: i16 = IP + 40;
const UDP_DESTINATION: i16 = 2;
const UDP_LEN: i16 = 8;
const UDP: i32 = 17;
/// Version 4, a header of five words: no options.
const V4_PLAIN: i32 = 0x45;

/// Where the key is built on the stack: its length rounded up to whole words of eight bytes.
const KEY: i16 = -24;

/// Where jumps lead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    V4,
    V6,
    Lookup,
    Pass,
}

/// Writes instructions, and fills in jumps in the end: all of them lead forwards.
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { opcode, registers: source << 4 | destination, offset, immediate });
    }

    fn jump(&mut self, opcode: u8, destination: u8, source: u8, immediate: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(opcode, destination, source, 0, immediate);
    }

    fn label(&mut self, label: Label) {
        let here = self.code.len();
        for (at, _) in self.jumps.iter().filter(|(_, to)| *to == label) {
            // Counted from the next instruction; the whole program has some sixty.
            self.code[*at].offset = (here - at - 1) as i16;
        }
        self.jumps.retain(|(_, to)| *to != label);
    }

    fn map(&mut self, register: u8, descriptor: i32) {
        self.push(LOAD_IMMEDIATE_64, register, MAP_BY_FD, 0, descriptor);
        self.push(0, 0, 0, 0, 0);
    }
}

/// The program over the maps with these descriptors: addresses that are ours, and sockets by queue. Frames of more than
/// `frame_len_max` bytes are left to the kernel.
pub(crate) fn assemble(addresses: i32, sockets: i32, frame_len_max: u32) -> Vec<Instruction> {
    // r0: answers; r1 to r5: arguments; r6: what is known of the frame; r10: the stack's end.
    let mut asm = Assembler { code: Vec::new(), jumps: Vec::new() };
    asm.push(MOVE, 6, 1, 0, 0);
    // A frame may lie in several buffers, of which only the first shows: its length has to be asked for.
    asm.push(CALL, 0, 0, 0, XDP_GET_BUFF_LEN);
    asm.jump(JUMP_GREATER, 0, 0, frame_len_max.cast_signed(), Label::Pass);
    asm.push(LOAD_U32, 2, 6, DATA, 0);
    asm.push(LOAD_U32, 3, 6, DATA_END, 0);
    require(&mut asm, V4_UDP + UDP_LEN);
    for at in [KEY, KEY + 8, KEY + 16] {
        asm.push(STORE_ZERO_U64, 10, 0, at, 0);
    }
    asm.push(LOAD_U16, 5, 2, ETHERTYPE, 0);
    asm.jump(JUMP_EQUAL, 5, 0, network(0x0800), Label::V4);
    asm.jump(JUMP_EQUAL, 5, 0, network(0x86dd), Label::V6);
    asm.jump(JUMP, 0, 0, 0, Label::Pass);

    asm.label(Label::V4);
    asm.push(LOAD_U8, 5, 2, IP, 0);
    asm.jump(JUMP_NOT_EQUAL, 5, 0, V4_PLAIN, Label::Pass);
    asm.push(LOAD_U8, 5, 2, V4_PROTOCOL, 0);
    asm.jump(JUMP_NOT_EQUAL, 5, 0, UDP, Label::Pass);
    // RFC 791, "more fragments" and "fragment offset".
    asm.push(LOAD_U16, 5, 2, V4_FRAGMENT, 0);
    asm.push(AND_IMMEDIATE, 5, 0, 0, network(0x3fff));
    asm.jump(JUMP_NOT_EQUAL, 5, 0, 0, Label::Pass);
    // RFC 4291 §2.5.5.2: ten bytes of zero, two of ones, and the address.
    asm.push(MOVE_IMMEDIATE, 5, 0, 0, 0xffff);
    asm.push(STORE_U16, 10, 5, KEY + 10, 0);
    asm.push(LOAD_U32, 5, 2, V4_DESTINATION, 0);
    asm.push(STORE_U32, 10, 5, KEY + 12, 0);
    asm.push(LOAD_U16, 5, 2, V4_UDP + UDP_DESTINATION, 0);
    asm.jump(JUMP, 0, 0, 0, Label::Lookup);

    asm.label(Label::V6);
    require(&mut asm, V6_UDP + UDP_LEN);
    asm.push(LOAD_U8, 5, 2, V6_NEXT_HEADER, 0);
    asm.jump(JUMP_NOT_EQUAL, 5, 0, UDP, Label::Pass);
    for at in [0, 4, 8, 12] {
        asm.push(LOAD_U32, 5, 2, V6_DESTINATION + at, 0);
        asm.push(STORE_U32, 10, 5, KEY + at, 0);
    }
    asm.push(LOAD_U16, 5, 2, V6_UDP + UDP_DESTINATION, 0);

    asm.label(Label::Lookup);
    asm.push(STORE_U16, 10, 5, KEY + 16, 0);
    asm.map(1, addresses);
    asm.push(MOVE, 2, 10, 0, 0);
    asm.push(ADD_IMMEDIATE, 2, 0, 0, KEY.into());
    asm.push(CALL, 0, 0, 0, MAP_LOOKUP_ELEM);
    asm.jump(JUMP_EQUAL, 0, 0, 0, Label::Pass);
    asm.map(1, sockets);
    asm.push(LOAD_U32, 2, 6, RX_QUEUE_INDEX, 0);
    // What it answers where the queue has no socket.
    asm.push(MOVE_IMMEDIATE, 3, 0, 0, XDP_PASS);
    asm.push(CALL, 0, 0, 0, REDIRECT_MAP);
    asm.push(EXIT, 0, 0, 0, 0);

    asm.label(Label::Pass);
    asm.push(MOVE_IMMEDIATE, 0, 0, 0, XDP_PASS);
    asm.push(EXIT, 0, 0, 0, 0);
    asm.code
}

/// Leaves frames with fewer bytes to the kernel.
fn require(asm: &mut Assembler, len: i16) {
    asm.push(MOVE, 4, 2, 0, 0);
    asm.push(ADD_IMMEDIATE, 4, 0, 0, len.into());
    asm.jump(JUMP_GREATER_REGISTER, 4, 3, 0, Label::Pass);
}

/// A number of the network's as a register of this machine holds it.
fn network(number: u16) -> i32 {
    number.to_be().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_jumps_lead_forwards_into_the_program() {
        let code = assemble(3, 4, 1514);
        for (at, instruction) in code.iter().enumerate() {
            let is_jump = instruction.opcode & 7 == 5 && ![CALL, EXIT].contains(&instruction.opcode);
            assert_eq!(is_jump, instruction.offset > 0 && instruction.opcode & 7 == 5);
            assert!(!is_jump || at + 1 + (instruction.offset as usize) < code.len());
        }
        assert_eq!(code.last().map(|last| last.opcode), Some(EXIT));
        assert_eq!(std::mem::size_of::<Instruction>(), 8);
    }

    #[test]
    fn keys_of_both_families_differ() {
        let v4 = key("192.0.2.1:7000".parse().unwrap());
        assert_eq!(v4, *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\x00\x02\x01\x1b\x58\0\0");
        assert_ne!(key("[2001:db8::1]:7000".parse().unwrap()), key("[2001:db8::1]:7001".parse().unwrap()));
    }
}
