# libFuzzer over every decoder in C++, each for SECONDS: make fuzz, make fuzz SECONDS=3600 TARGETS=thc
SECONDS := 60
TARGETS := coding gennorm sign_vote thc packing
CLANGXX := clang++

OUT      := build/fuzz
KERNELS  := laconic/kernels
HEADERS  := $(wildcard tests/fuzz/*.h $(KERNELS)/*/*.h $(KERNELS)/*.inc $(KERNELS)/*/*.inc)
FAMILIES := $(KERNELS)/native/instruction_set.cpp $(wildcard $(KERNELS)/*/cpu*.cpp)

# As in CMakeLists.txt.
SETS := portable
avx2 := avx2 fma f16c bmi2
avx512 := $(avx2) avx512f avx512bw avx512dq avx512vl
OPTIONS_avx512 := -mprefer-vector-width=512 -Wno-uninitialized
ifneq ($(filter x86_64 amd64,$(shell uname -m)),)
SETS += avx2 avx512
endif
NEEDS = -D'LACONIC_NEEDS_$(1)=$(subst $() ,&&,$(foreach feature,$($(1)),has_$(feature)()))'

SANITIZERS := address,undefined
FLAGS := -std=c++17 -O1 -gline-tables-only -fno-sanitize-recover=undefined -ffp-contract=off -fno-math-errno \
         -Wall -Wextra -Wno-unused-const-variable -I$(KERNELS)

.PHONY: all $(TARGETS)
.SECONDARY:

all: $(TARGETS)

# What is found is kept, and is where the next run begins.
$(TARGETS): %: $(OUT)/%
	@mkdir -p $(OUT)/corpus/$@ $(OUT)/crashes
	@echo "$@: $(SECONDS) seconds"
	@$(OUT)/$@ $(OUT)/corpus/$@ tests/fuzz/seeds/$@ -max_total_time=$(SECONDS) -max_len=20000 -timeout=10 \
	  -rss_limit_mb=2048 -malloc_limit_mb=64 -artifact_prefix=$(OUT)/crashes/$@- -print_final_stats=1 \
	  2> $(OUT)/$@.log || { tail -n 60 $(OUT)/$@.log; \
	  echo "$@ failed; again: $(OUT)/$@ $$(ls -t $(OUT)/crashes/$@-* | head -n 1)"; exit 1; }
	@sed -n 's/^stat::number_of_executed_units: */  messages: /p; s/^stat::new_units_added: */  new in the corpus: /p' \
	  $(OUT)/$@.log

$(OUT)/%: tests/fuzz/%.cpp $(foreach set,$(SETS),$(OUT)/$(set).a) $(HEADERS) $(OUT)/able
	@echo "building $@"
	@$(CLANGXX) $(FLAGS) -fsanitize=fuzzer,$(SANITIZERS) $(foreach set,$(filter-out portable,$(SETS)),$(call NEEDS,$(set))) \
	  $< $(foreach set,$(SETS),$(OUT)/$(set).a) -o $@

# One folder of objects for each instruction set.
define instruction_set
$(OUT)/$(1).a: $(FAMILIES:$(KERNELS)/%.cpp=$(OUT)/$(1)/%.o)
	@rm -f $$@
	@ar rcs $$@ $$^

$(OUT)/$(1)/%.o: $(KERNELS)/%.cpp $(HEADERS) $(OUT)/able
	@mkdir -p $$(@D)
	@echo "building $$@"
	@$(CLANGXX) $(FLAGS) $(addprefix -m,$($(1))) $(OPTIONS_$(1)) -fsanitize=fuzzer-no-link,$(SANITIZERS) \
	  -DLACONIC_ISA=$(1) -c $$< -o $$@
endef
$(foreach set,$(SETS),$(eval $(call instruction_set,$(set))))

# Whether there are a compiler and libFuzzer.
$(OUT)/able:
	@mkdir -p $(OUT)
	@echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' | \
	  $(CLANGXX) -fsanitize=fuzzer,$(SANITIZERS) -x c++ - -o $@ 2> $(OUT)/able.log || \
	  { echo "make fuzz needs clang++ with libFuzzer, in Debian the packages clang and libclang-rt-14-dev" >&2; exit 1; }
