# Builds the C sources of libzstd that Cargo has unpacked for zstd-sys, below the current folder, and
# prints a checksum of all objects. Variables: ZSTD, the folder with them; PARTS, some of its folders;
# LEVEL, of optimisation.
LEVEL = 1
PARTS = common compress decompress dictBuilder
SOURCES := $(sort $(wildcard $(PARTS:%=$(ZSTD)/%/*.c)))
OBJECTS := $(subst /,_,$(patsubst $(ZSTD)/%.c, %.o, $(SOURCES)))

all: $(OBJECTS)
	@cat $(OBJECTS) | cksum

define rule
$(subst /,_,$(patsubst $(ZSTD)/%.c, %.o, $(1))): $(1)
	@gcc -O$(LEVEL) -DZSTD_DISABLE_ASM -c -o $$@ $$<
endef
$(foreach source, $(SOURCES), $(eval $(call rule, $(source))))

clean:
	@rm -f *.o
