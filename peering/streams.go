package peering

import (
	"context"
	"io"
)

// LogOptions selects a part of a container's log.
type LogOptions struct {
	// Container is required.
	Container string
	// Follow goes on with what comes.
	Follow bool
	// Previous is the log of the container's previous run.
	Previous bool
	// Timestamps begins each line with its time.
	Timestamps bool
	// TailLines is how many lines from the end; nil is all.
	TailLines *int64
	// LimitBytes is how many bytes at most; nil is all.
	LimitBytes *int64
	// SinceSeconds is how old at most; nil is all.
	SinceSeconds *int64
}

// ExecOptions says what to run in a container, and with what.
type ExecOptions struct {
	// Container is required.
	Container string
	// Command is what to run; empty attaches to the container's own process.
	Command []string
	// Stdin, Stdout and Stderr are the process's; nil means none. With TTY there is
	// no Stderr. A Read of Stdin that blocks is not waited for: close it.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY runs it on a terminal. Resize, which may be nil, waits for the terminal's next
	// size, and says false when there are no more or ctx has ended.
	TTY    bool
	Resize func(ctx context.Context) (TerminalSize, bool)
}

// TerminalSize is a terminal's size in characters.
type TerminalSize struct{ Width, Height uint16 }
