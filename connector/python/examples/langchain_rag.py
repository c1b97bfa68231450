"""A LangChain pipeline that uses a vLLM server with the connector.

    python langchain_rag.py [URL]                     # pip install langchain-openai

No setting is required. `extra_body` selects among the finders that the server was started with,
for an application that knows better than the server's default.
"""

import sys
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

READ = "read the notes in the order of time and answer the question ."


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    llm = ChatOpenAI(
        base_url=url,
        api_key="none",
        model=sys.argv[2] if len(sys.argv) > 2 else "scripts/tinyhybrid/model",
        max_tokens=2,
        temperature=0,
        extra_body={"kv_transfer_params": {"spliced": {"v": 1, "find": ["chunks"]}}},
    )
    notes = (Path(__file__).parent / "notes.txt").read_text().strip().split("\n\n")
    found = [Document(text) for text in notes]
    prompt = ChatPromptTemplate([("system", READ), ("user", "{context}\n\n{question}")])
    joined = RunnableLambda(
        lambda said: {**said, "context": "\n\n".join(d.page_content for d in said["context"])}
    )
    chain = joined | prompt | llm
    for documents in (found, found[4:] + found[:4]):
        asked = "question : in which month was the employer of Ulla founded ? answer :"
        reply = chain.invoke({"context": documents, "question": asked})
        print("answer:", str(reply.content).strip())
        usage = reply.usage_metadata or {}
        cached = usage.get("input_token_details", {}).get("cache_read")
        print("prompt tokens:", usage.get("input_tokens"), "of them not computed:", cached)


if __name__ == "__main__":
    main()
