package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/entente-dev/entente/integration/eventually"
)

// Restart pauses of a supervised process, and the size at which its log starts
// again from nothing when the process does.
const (
	restartPauseFirst = 500 * time.Millisecond
	restartPauseMost  = 10 * time.Second
	logFileMost       = 256 << 20
)

// process is one component to keep running. Values only, so that what a node
// runs is a function of the plan and can be written to a file.
type process struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
	// After names what has to hold before the process starts for the first
	// time; see waiter.
	After []condition `json:"after,omitempty"`
}

// condition is something that a process waits for before its first start.
type condition struct {
	// Socket waits until something listens on this unix socket.
	Socket string `json:"socket,omitempty"`
	// Ready waits until this kubeconfig's API server is ready, or, with Path,
	// until it has the object there.
	Ready string `json:"ready,omitempty"`
	Path  string `json:"path,omitempty"`
	// File waits until there is a file of this name.
	File string `json:"file,omitempty"`
	// Step waits for the supervisor's step of this name.
	Step string `json:"step,omitempty"`
}

// step is work that is done once, between the starts of processes.
type step struct {
	name  string
	after []condition
	do    func(context.Context) error
}

// Process is one component of a node or a light cluster, as it is now.
type Process struct {
	Name     string    `json:"name"`
	PID      int       `json:"pid,omitempty"`
	Running  bool      `json:"running"`
	Since    time.Time `json:"since"`
	Restarts int       `json:"restarts"`
	// Last says how the previous run ended.
	Last string `json:"last,omitempty"`
}

// supervisor keeps processes running until its context ends.
type supervisor struct {
	logDir    string
	mark      string // environment entry that every process gets
	logger    *slog.Logger
	processes []process
	steps     []step
	changed   func([]Process) // called after each change; may be nil

	mu     sync.Mutex
	states []Process
	done   map[string]chan struct{}
}

// run starts everything and blocks until ctx ends and all processes are gone,
// or a step fails.
func (s *supervisor) run(ctx context.Context) error {
	if err := os.MkdirAll(s.logDir, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.done = map[string]chan struct{}{}
	for _, st := range s.steps {
		s.done[st.name] = make(chan struct{})
	}
	s.mu.Lock()
	s.states = make([]Process, len(s.processes))
	for i, p := range s.processes {
		s.states[i].Name = p.Name
	}
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, st := range s.steps {
		wg.Go(func() {
			if s.await(ctx, st.after) != nil {
				return
			}
			if err := st.do(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", st.name, err))
				return
			}
			close(s.done[st.name])
		})
	}
	for i, p := range s.processes {
		wg.Go(func() {
			// The kernel ends a child when the thread that started it ends:
			// keep this goroutine on its thread, and the thread with it.
			runtime.LockOSThread()
			if s.await(ctx, p.After) == nil {
				s.keep(ctx, i, p)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil && err != context.Canceled { //nolint:errorlint // the cause of a step may wrap it
		return err
	}
	return nil
}

// keep runs one process again and again.
func (s *supervisor) keep(ctx context.Context, i int, p process) {
	pause := restartPauseFirst
	for {
		begin := time.Now()
		err := s.once(ctx, i, p)
		if ctx.Err() != nil {
			return
		}
		s.logger.Warn("process ended", "process", p.Name, "err", err)
		if time.Since(begin) > time.Minute {
			pause = restartPauseFirst
		}
		s.update(i, func(st *Process) {
			st.Running, st.PID, st.Last = false, 0, fmt.Sprint(err)
			st.Restarts++
		})
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, restartPauseMost)
	}
}

func (s *supervisor) once(ctx context.Context, i int, p process) error {
	name := filepath.Join(s.logDir, p.Name+".log")
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if fi, err := os.Stat(name); err == nil && fi.Size() > logFileMost {
		flags |= os.O_TRUNC
	}
	out, err := os.OpenFile(name, flags, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(append(os.Environ(), p.Env...), s.mark)
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.update(i, func(st *Process) { st.Running, st.PID, st.Since = true, cmd.Process.Pid, time.Now() })
	if err := cmd.Wait(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

func (s *supervisor) update(i int, change func(*Process)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.states[i])
	if s.changed != nil {
		s.changed(s.states)
	}
}

// snapshot returns the state of each process.
func (s *supervisor) snapshot() []Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Process(nil), s.states...)
}

// await blocks until all conditions hold.
func (s *supervisor) await(ctx context.Context, cs []condition) error {
	for _, c := range cs {
		var err error
		switch {
		case c.Step != "":
			select {
			case <-ctx.Done():
				err = ctx.Err()
			case <-s.done[c.Step]:
			}
		case c.Socket != "":
			err = eventually.Poll(ctx, 50*time.Millisecond, func() bool { return listens(ctx, c.Socket) })
		case c.File != "":
			err = eventually.Poll(ctx, 50*time.Millisecond, func() bool { _, err := os.Stat(c.File); return err == nil })
		case c.Ready != "":
			err = awaitReady(ctx, c.Ready, c.Path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
