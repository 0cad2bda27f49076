/* data/text/sentencepiece/spm_text.h - converts ids of a SentencePiece model to text, id by id, as
 * they are drawn.
 *
 * A piece's mark becomes a space. Byte tokens between pieces are joined to characters. Control
 * tokens give no text; unknown tokens and ids beyond the vocabulary become U+FFFD. */
#pragma once

#include "base/text/utf8_stream.h"
#include "data/text/sentencepiece/spm.h"

/* Add the text of the next id. Fails only if the stream does. */
lks_status lks__spm_text_add(const lks__spm *spm, int32_t id, lks__utf8_stream *out);
