#!/bin/sh
# gpu-check's gradients beside PyTorch's, on stand-ins and with PyTorch on the CPU; and that it finds a tensor whose gradient
# is another one. argv: SOURCE, lockstep_cuda_standin. Exit code 77: there is no PyTorch, nanoGPT or train_gpt.py.
set -eu
. "$(dirname "$0")/../../support.sh"
source=$1 tool=$2
find_python pytorch 'torch, numpy'
[ -e "${LOCKSTEP_TEST_NANOGPT-}/model.py" ] || lacks nanogpt 'LOCKSTEP_TEST_NANOGPT names no checkout of it'
[ -e "${LOCKSTEP_TEST_GOLF-}" ] || lacks golf-script 'LOCKSTEP_TEST_GOLF names no train_gpt.py'
work_folder
export TMPDIR="$work"

# check STATUS NANOGPT GOLF PYTHON
check() {
    timeout "$(patient 120)" "$source/scripts/gpu-check" --lockstep="$tool" --short --only=autograd --out="$work/result.json" \
        --nanogpt="$2" --golf="$3" --python="$4" >"$work/log" 2>&1 && code=0 || code=$?
    [ "$code" = "$1" ] || fail "gpu-check ends with $code"
    grep autograd "$work/log"
}

check 0 "$LOCKSTEP_TEST_NANOGPT" "$LOCKSTEP_TEST_GOLF" "$python"
grep -q '^passed *autograd: .*"gpt2, float32": .*"golf, float32": ' "$work/log" || fail 'both families'

# The rows of one gradient change places in nanoGPT's model, and parameter-golf's caps its logits elsewhere.
mkdir "$work/nanogpt"
sed 's/^        # init all weights$/        self.transformer.wpe.weight.register_hook(lambda g: g.flip(0))/' "$LOCKSTEP_TEST_NANOGPT/model.py" \
    >"$work/nanogpt/model.py"
sed 's/^        self.logit_softcap = logit_softcap$/        self.logit_softcap = 0.1/' "$LOCKSTEP_TEST_GOLF" >"$work/train_gpt.py"
check 1 "$work/nanogpt" "$work/train_gpt.py" "$python"
grep -q 'gpt2, float32: the gradient of transformer.wpe.weight is off by .*, with a cosine of' "$work/log" || fail 'which tensor is wrong'
grep -q 'golf, float32: the loss is .*, and PyTorch' "$work/log" || fail 'that the loss is wrong'
[ "$(grep -o 'gpt2, float32' "$work/log" | wc -l)" = 1 ] || fail 'other tensors than the wrong one are named'

mkdir "$work/empty"
check 0 "$work/empty" "$LOCKSTEP_TEST_GOLF" false
grep -q '^left out autograd: PyTorch: exit code 1' "$work/log" || fail 'a Python without PyTorch'
