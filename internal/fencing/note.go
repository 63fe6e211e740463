package fencing

import (
	"strconv"
	"strings"
	"time"
)

// notePrefix begins the annotations of a namespace that record which contract has a fence there: its seconds, and
// when the consumer was there.
const notePrefix = "fence.entente.dev/"

// NoteOf returns the key and the value of the annotation of a namespace that records a fence.
func NoteOf(f Fence) (key, value string) {
	return notePrefix + f.Contract, strconv.FormatInt(int64(f.Length/time.Second), 10) + " " + f.LastSeen.UTC().Format(time.RFC3339)
}

// Noted returns the fences that the annotations of a namespace record. A malformed one is returned without
// LastSeen: no pod runs under it.
func Noted(namespace string, annotations map[string]string) (out []Fence) {
	for key := range annotations {
		if contract, ok := strings.CutPrefix(key, notePrefix); ok {
			f, _ := NotedFor(namespace, contract, annotations)
			out = append(out, f)
		}
	}
	return out
}

// NotedFor returns the fence of one contract.
func NotedFor(namespace, contract string, annotations map[string]string) (Fence, bool) {
	note, ok := annotations[notePrefix+contract]
	if !ok {
		return Fence{}, false
	}
	f := Fence{Namespace: namespace, Contract: contract}
	seconds, seen, _ := strings.Cut(note, " ")
	n, err := strconv.ParseInt(seconds, 10, 32)
	at, timeErr := time.Parse(time.RFC3339, seen)
	if err == nil && timeErr == nil {
		f.Length, f.LastSeen = time.Duration(n)*time.Second, at
	}
	return f, true
}
