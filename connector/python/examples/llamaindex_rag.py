"""A LlamaIndex response synthesiser that uses a vLLM server with the connector.

    python llamaindex_rag.py [URL] [MODEL]            # pip install llama-index-llms-openai-like

The synthesiser joins the documents with blank lines, and the server finds the documents by these
lines.
"""

import sys
from pathlib import Path

from llama_index.core import PromptTemplate, get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai_like import OpenAILike


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    llm = OpenAILike(
        model=sys.argv[2] if len(sys.argv) > 2 else "scripts/tinyhybrid/model",
        api_base=url,
        api_key="none",
        is_chat_model=True,
        context_window=4096,
        max_tokens=2,
        temperature=0,
    )
    notes = (Path(__file__).parent / "notes.txt").read_text().strip().split("\n\n")
    found = [NodeWithScore(node=TextNode(text=text), score=1.0) for text in notes]
    read = "read the notes in the order of time and answer the question ."
    synthesizer = get_response_synthesizer(
        llm=llm,
        response_mode="compact",
        text_qa_template=PromptTemplate(f"{read}\n\n{{context_str}}\n\n{{query_str}}"),
    )
    for nodes in (found, found[4:] + found[:4]):
        asked = "question : in which month was the employer of Ulla founded ? answer :"
        print("answer:", str(synthesizer.synthesize(asked, nodes)).strip())


if __name__ == "__main__":
    main()
