//! C that a compiler needs memory for: many functions, with loops and switches to be optimised.

use std::fmt::Write;
use std::fs;
use std::path::Path;

const FUNCTIONS: u64 = 300;

/// Writes this many sources, and a Makefile that makes of them the program `all`.
pub(crate) fn write(folder: &Path, count: u64) {
    let mut main = String::from("#include <stdio.h>\n");
    let mut calls = String::new();
    for number in 0..count {
        fs::write(folder.join(format!("part{number}.c")), part(number)).unwrap();
        writeln!(main, "unsigned part{number}(unsigned);").unwrap();
        writeln!(calls, "    sum = part{number}(sum);").unwrap();
    }
    writeln!(main, "int main(void) {{\n    unsigned sum = 1;\n{calls}").unwrap();
    writeln!(main, "    printf(\"%u\\n\", sum);\n    return 0;\n}}").unwrap();
    fs::write(folder.join("main.c"), main).unwrap();
    let objects = (0..count).map(|number| format!("part{number}.o ")).collect::<String>();
    let makefile = format!(
        "CFLAGS = -O1\nall: main.o {objects}\n\tgcc -o $@ main.o {objects}\n\
         %.o: %.c\n\tgcc $(CFLAGS) -c -o $@ $<\nclean:\n\trm -f all *.o\n"
    );
    fs::write(folder.join("Makefile"), makefile).unwrap();
}

fn part(number: u64) -> String {
    let mut text = String::from("#include <stdlib.h>\n#include <string.h>\n#include <stdio.h>\n");
    for function in 0..FUNCTIONS {
        let seed = number * 7919 + function * 104_729;
        let (a, b, c) = (seed % 13 + 3, seed % 29 + 1, seed % 97);
        write!(
            text,
            "struct s{function} {{ unsigned a[{a}], b; double d; }};\n\
             static unsigned f{function}(unsigned x) {{\n\
             struct s{function} s = {{ .b = x ^ {seed} }};\n\
             for (unsigned i = 0; i < {a}; i++) {{\n\
             s.a[i] = x * (i + {b}) + {c};\n\
             switch ((s.a[i] + i) % 5) {{\n\
             case 0: s.b += s.a[i] >> 3; break;\n\
             case 1: s.b ^= s.a[(i + 1) % {a}] * {b}; break;\n\
             case 2: s.d = s.d * 0.5 + s.b % 1000; s.b += (unsigned)s.d; break;\n\
             case 3: for (int j = 0; j < {b}; j++) s.b = s.b * 31 + j; break;\n\
             default: s.b -= {c};\n\
             }}\n}}\nreturn s.b;\n}}\n"
        )
        .unwrap();
    }
    writeln!(text, "unsigned part{number}(unsigned x) {{").unwrap();
    (0..FUNCTIONS).for_each(|function| writeln!(text, "x = f{function}(x);").unwrap());
    text + "return x;\n}\n"
}
