package peering

import (
	"context"
	"io"
)

// LogOptions selects a part of a container's log.
type LogOptions struct {
	// Container is required.
	Container string
	// Follow also returns lines that are written later.
	Follow bool
	// Previous selects the log of the container's previous run.
	Previous bool
	// Timestamps adds its time in front of each line.
	Timestamps bool
	// TailLines is how many lines from the end; nil means all.
	TailLines *int64
	// LimitBytes is how many bytes at most; nil means all.
	LimitBytes *int64
	// SinceSeconds is how old at most; nil means all.
	SinceSeconds *int64
}

// ExecOptions has what to run in a container, and its streams.
type ExecOptions struct {
	// Container is required.
	Container string
	// Command is what to run; empty attaches to the container's own process.
	Command []string
	// Stdin, Stdout and Stderr are the process's; nil means none. With TTY there is
	// no Stderr. A Read of Stdin that blocks is not waited for: close it.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY runs it on a terminal. Resize, which may be nil, waits for the terminal's next size. It
	// returns false when there are no more sizes or ctx has ended.
	TTY    bool
	Resize func(ctx context.Context) (TerminalSize, bool)
}

// TerminalSize is a terminal's size in characters.
type TerminalSize struct{ Width, Height uint16 }
