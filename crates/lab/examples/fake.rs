use anabranch_lab::demo::*;
fn main() {
    let o =
        Options { program: "/tmp/demofake/anabranch".into(), out: "/tmp/demofake/out".into(), content_bytes: 64 << 20 };
    let r = run(&o, &false.into(), &mut |n| {
        if let Notice::Goes(l) = n {
            if l.seconds.fract() < 0.1 {
                eprintln!("{l:?}")
            }
        }
    })
    .unwrap();
    println!("{}", r.report.text());
}
