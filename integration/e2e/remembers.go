package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// memoryChunk is how much of a process' memory is read at once.
const memoryChunk = 1 << 20

// Remembers reports whether a word is in the memory that a process writes: in what it received, decrypted or
// sends.
func Remembers(pid int, word string) (bool, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return false, err
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return false, err
	}
	defer func() { _ = memory.Close() }()
	buffer := make([]byte, memoryChunk+len(word))
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if f := strings.Fields(line); len(f) < 2 || !strings.HasPrefix(f[1], "rw") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return false, fmt.Errorf("memory of %d: %q: %w", pid, line, err)
		}
		for ; from < to; from += memoryChunk {
			n, _ := memory.ReadAt(buffer[:min(int64(len(buffer)), to-from)], from) // what was unmapped meanwhile is not there
			if bytes.Contains(buffer[:n], []byte(word)) {
				return true, nil
			}
		}
	}
	return false, nil
}
