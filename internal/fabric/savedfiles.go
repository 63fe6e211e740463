package fabric

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	planFile, keyFile = "plan", "key"
	// tokenLimit is how long a service account's token may be.
	tokenLimit = 1 << 16
)

// stateFiles keeps a node's state in a directory. Nil keeps nothing. What cannot be written is
// logged, and is no reason not to go on.
type stateFiles struct {
	directory string
	of        owner
	log       *slog.Logger
	// offers has the newest plan that is to be written.
	offers chan *savedPlan

	mu sync.Mutex
	// wanted says that the node has tunnels. Without one nothing is kept.
	wanted bool
	// key is the node's, sum that of the plan that was written, and confirmed as it says.
	key       []byte
	sum       [sha256.Size]byte
	confirmed time.Time
	failing   bool
}

// openState returns nil, and logs why, where nothing can be kept.
func openState(cfg Config) *stateFiles {
	if cfg.StateDirectory == "" {
		return nil
	}
	s := &stateFiles{directory: cfg.StateDirectory, log: cfg.Log, offers: make(chan *savedPlan, 1)}
	err := s.open(cfg)
	if err != nil {
		cfg.Log.Warn("this node keeps nothing for a restart without the API server", "err", err)
		return nil
	}
	return s
}

func (s *stateFiles) open(cfg Config) error {
	if cfg.Kubernetes == nil || cfg.Kubernetes.BearerTokenFile == "" {
		return errors.New("it has no service account's token, which says whose state it is")
	}
	token, err := readLimited(cfg.Kubernetes.BearerTokenFile, tokenLimit)
	if err != nil {
		return fmt.Errorf("read the service account's token: %w", err)
	}
	if s.of, err = ownerOf(string(token), cfg.Node); err != nil {
		return err
	}
	if err := os.MkdirAll(s.directory, 0o700); err != nil {
		return fmt.Errorf("make the directory of the node's state: %w", err)
	}
	if err := os.Chmod(s.directory, 0o700); err != nil {
		return fmt.Errorf("close the directory of the node's state to others: %w", err)
	}
	return nil
}

// readLimited reads a file up to a limit.
func readLimited(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was read only
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it has more than %d bytes", limit)
	}
	return b, err
}

// read reads a file into value. False is that there is none that can be used, and why is logged.
func (s *stateFiles) read(name string, value any) bool {
	path := filepath.Join(s.directory, name)
	b, err := s.readOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil {
		err = decodeState(b, s.of, value)
	}
	if err != nil {
		s.log.Warn("what this node kept is not used", "file", path, "err", err)
		return false
	}
	return true
}

// readOwn reads a file that nobody else can have written or read.
func (s *stateFiles) readOwn(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was read only
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return nil, errors.New("it must be a regular file, readable and writable by its owner only")
	}
	return io.ReadAll(io.LimitReader(f, maxState+1))
}

// write replaces a file, in one step and so that it outlives a loss of power.
func (s *stateFiles) write(name string, b []byte) error {
	f, err := os.CreateTemp(s.directory, "."+name+"-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.directory, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return s.sync()
}

// sync makes what was renamed or removed last.
func (s *stateFiles) sync() error {
	d, err := os.Open(s.directory)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// failed logs the first of several errors in a row. The lock is held.
func (s *stateFiles) failed(err error) {
	if err != nil && !s.failing {
		s.log.Warn("this node cannot keep its state for a restart without the API server", "err", err)
	}
	s.failing = err != nil
}

// load reads the plan. Nil means none.
func (s *stateFiles) load() *savedPlan {
	if s == nil {
		return nil
	}
	var p savedPlan
	if !s.read(planFile, &p) {
		return nil
	}
	s.mu.Lock()
	s.wanted = true
	s.mu.Unlock()
	return &p
}

// savedKey is the node's WireGuard key.
type savedKey struct {
	Private []byte `json:"private"`
}

// Format hides the key.
func (savedKey) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("[redacted]")) }

func (s *stateFiles) Load() []byte {
	var k savedKey
	if !s.read(keyFile, &k) {
		return nil
	}
	s.mu.Lock()
	s.key, s.wanted = k.Private, true
	s.mu.Unlock()
	return k.Private
}

func (s *stateFiles) Save(key []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(key) == string(s.key) {
		return
	}
	s.key = append([]byte(nil), key...)
	if s.wanted {
		s.failed(s.writeKey())
	}
}

// writeKey writes the key. The lock is held.
func (s *stateFiles) writeKey() error {
	b, err := encodeState(s.of, savedKey{s.key})
	if err == nil {
		err = s.write(keyFile, b)
	}
	return err
}

// offer has a plan written soon. The newest wins.
func (s *stateFiles) offer(p *savedPlan) {
	if s == nil {
		return
	}
	for {
		select {
		case s.offers <- p:
			return
		default:
		}
		select {
		case <-s.offers:
		default:
		}
	}
}

// stale says that the API server answered so long after what was written that this is to be written
// again, though nothing else changed.
func (s *stateFiles) stale(confirmed time.Time) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted && confirmed.Sub(s.confirmed) >= savedAgain
}

// run writes what is offered, until ctx ends.
func (s *stateFiles) run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			select {
			case p := <-s.offers:
				s.keep(p)
			default:
			}
			return nil
		case p := <-s.offers:
			s.keep(p)
		}
		select {
		case <-ctx.Done():
		case <-time.After(savePause):
		}
	}
}

// keep writes a plan, unless it stands there; one without tunnels removes all.
func (s *stateFiles) keep(p *savedPlan) {
	if len(p.Tunnels) == 0 {
		s.remove()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	confirmed := p.Confirmed
	p.Confirmed = time.Time{}
	bare, err := encodeState(s.of, p)
	sum := sha256.Sum256(bare)
	if err == nil && sum == s.sum && confirmed.Sub(s.confirmed) < savedAgain {
		return
	}
	var b []byte
	if err == nil {
		p.Confirmed = confirmed
		b, err = encodeState(s.of, p)
	}
	if err == nil && !s.wanted && s.key != nil {
		err = s.writeKey()
	}
	if err == nil {
		err = s.write(planFile, b)
	}
	if err != nil {
		// What stands there is not true any more.
		s.sum, s.confirmed = [sha256.Size]byte{}, time.Time{}
		err = errors.Join(err, ignoreMissing(os.Remove(filepath.Join(s.directory, planFile))))
	} else {
		s.wanted, s.sum, s.confirmed = true, sum, confirmed
	}
	s.failed(err)
}

// remove removes what is kept.
func (s *stateFiles) remove() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted, s.sum, s.confirmed = false, [sha256.Size]byte{}, time.Time{}
	s.failed(RemoveState(s.directory))
}

// RemoveState removes what a node kept, and what a process left behind that was killed while it
// wrote.
func RemoveState(directory string) error {
	var errs []error
	for _, pattern := range []string{planFile, keyFile, "." + planFile + "-*", "." + keyFile + "-*"} {
		found, _ := filepath.Glob(filepath.Join(directory, pattern))
		for _, path := range found {
			errs = append(errs, ignoreMissing(os.Remove(path)))
		}
	}
	return errors.Join(errs...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
