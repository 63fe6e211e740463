package volumecopy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Port is where the receiver listens.
const Port = 7453

// Phase is the progress of one side.
type Phase string

// Phases. The receiver is Waiting, Copying, Reading and Verified, and Finished when its marker is gone; the
// sender also Connecting, and Copied while it waits to be sealed.
const (
	Connecting Phase = "Connecting"
	Waiting    Phase = "Waiting"
	Copying    Phase = "Copying"
	Copied     Phase = "Copied"
	Reading    Phase = "Reading"
	Verified   Phase = "Verified"
	Finished   Phase = "Finished"
)

// Status is the status of one side.
type Status struct {
	Phase Phase `json:"phase"`
	// Pass counts the copies, each of which compares everything with the destination.
	Pass int `json:"pass,omitempty"`
	// Files and Bytes are what this pass has copied, or read, so far.
	Files int64 `json:"files,omitempty"`
	Bytes int64 `json:"bytes,omitempty"`
	// Sealed means that the side knows that it is: the sender, that no other pod can use the source any longer;
	// the receiver, that the move has noted that both volumes are equal.
	Sealed bool `json:"sealed,omitempty"`
	// Sum is the digest of this side's volume.
	Sum Sum `json:"sum,omitzero"`
	// Problem is the last error, after which it tries again.
	Problem string `json:"problem,omitempty"`
}

// Sum is the digest of a volume, with its totals.
type Sum struct {
	Digest string `json:"digest"`
	Files  int64  `json:"files"` // names of all kinds
	Bytes  int64  `json:"bytes"` // of files
}

const (
	statusFile = "status.json"
	sealFile   = "seal"
	// rootFile has the times of the root of a destination, which the removal of the marker changes.
	rootFile = "root.json"
	// statusInterval is how often a changing status is written.
	statusInterval = 250 * time.Millisecond
	// maxProblem bounds the problem in a status.
	maxProblem = 512
)

// reporter writes the status of one side into a directory, from which ReadStatus reads it.
type reporter struct {
	directory string

	mu      sync.Mutex
	is      Status
	written time.Time
}

// set changes the status, and writes it.
func (r *reporter) set(change func(*Status)) { r.change(change, true) }

// count adds to the totals of a pass, and writes the status at most each statusInterval.
func (r *reporter) count(files, bytes int64) {
	r.change(func(s *Status) { s.Files, s.Bytes = s.Files+files, s.Bytes+bytes }, false)
}

func (r *reporter) change(change func(*Status), write bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.is)
	if !write && time.Since(r.written) < statusInterval {
		return
	}
	r.written = time.Now()
	text, err := json.Marshal(r.is)
	if err == nil {
		// A status that cannot be written stops nothing: a reader sees the one before.
		_ = replaceFile(filepath.Join(r.directory, statusFile), text)
	}
}

func (r *reporter) problem(err error) {
	text := err.Error()
	r.set(func(s *Status) { s.Problem = text[:min(len(text), maxProblem)] })
}

func replaceFile(path string, text []byte) error {
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// ReadStatus returns the status of the side that writes it into a directory. If seal is set, it
// first seals that side.
func ReadStatus(directory string, seal bool) (Status, error) {
	if seal {
		if err := replaceFile(filepath.Join(directory, sealFile), nil); err != nil {
			return Status{}, fmt.Errorf("seal the volume: %w", err)
		}
	}
	var s Status
	text, err := os.ReadFile(filepath.Join(directory, statusFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil // it has just begun
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return s, fmt.Errorf("read the status: %w", err)
	}
	return s, nil
}

// sealed reports whether this side is sealed.
func (r *reporter) sealed() bool {
	_, err := os.Stat(filepath.Join(r.directory, sealFile))
	return err == nil
}
