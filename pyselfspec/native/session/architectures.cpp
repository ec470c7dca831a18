#include "session/architectures.h"

#include "llama-arch.h"
#include "llama-model.h"

#include <map>

bool selfspec_has(const llama_model & model, selfspec_trait trait) {
    static const std::map<llm_arch, uint32_t> traits = {
        { LLM_ARCH_BAILINGMOE3,      SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_DFLASH,           SELFSPEC_TRAIT_HEAD_BLOCKS },
        { LLM_ARCH_EAGLE3,           SELFSPEC_TRAIT_HEAD | SELFSPEC_TRAIT_HEAD_FUSES },
        { LLM_ARCH_FALCON_H1,        SELFSPEC_TRAIT_REPLAYS | SELFSPEC_TRAIT_STATES_IN_ALL },
        { LLM_ARCH_GEMMA4,           SELFSPEC_TRAIT_LEAVES_LAST },
        { LLM_ARCH_GEMMA4_ASSISTANT, SELFSPEC_TRAIT_HEAD },
        { LLM_ARCH_GRANITE_HYBRID,   SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_JAMBA,            SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_KIMI_K3,          SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_KIMI_LINEAR,      SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_LFM2,             SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_LFM2MOE,          SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_MAMBA,            SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_MAMBA2,           SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_MINIMAX_01,       SELFSPEC_TRAIT_MIXES_ROWS }, // its linear attention multiplies rows by each other
        { LLM_ARCH_NEMOTRON_H,       SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_NEMOTRON_H_MOE,   SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_QWEN35,           SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_QWEN35MOE,        SELFSPEC_TRAIT_REPLAYS },
        { LLM_ARCH_QWEN3NEXT,        SELFSPEC_TRAIT_REPLAYS },
    };
    const auto known = traits.find(model.arch);
    return known != traits.end() && (known->second & trait);
}

std::string selfspec_architecture(const llama_model & model) {
    return std::string("architecture ") + llm_arch_name(model.arch);
}
