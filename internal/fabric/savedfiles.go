package fabric

import (
	"bytes"
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

// stateFiles saves a node's state in a directory. Nil saves nothing. Failures are
// logged, and the fabric goes on.
type stateFiles struct {
	directory string
	of        owner
	log       *slog.Logger
	// offers has the newest plan to write.
	offers chan *savedPlan

	mu sync.Mutex
	// hasTunnels says that the node has tunnels. Otherwise nothing is saved.
	hasTunnels bool
	// key is that of the node, keyWritten says that its file has it. sum and confirmed are those of the
	// plan that was last written.
	key        []byte
	keyWritten bool
	sum        [sha256.Size]byte
	confirmed  time.Time
	failing    bool
}

// openState returns nil, and logs why, if the state cannot be saved.
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
		return errors.New("it has no service account's token, which identifies the owner of the state")
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
		return fmt.Errorf("restrict the directory of the node's state to its owner: %w", err)
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

// read reads a file into value. It returns false, and logs why, if no usable file exists.
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
		s.log.Warn("the saved state of this node is not used", "file", path, "err", err)
		return false
	}
	return true
}

// readOwn reads a file that only this user can have written or read.
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

// sync makes changes of the directory outlive a loss of power.
func (s *stateFiles) sync() error {
	d, err := os.Open(s.directory)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// failed logs the first of several errors in a row. The caller has the lock.
func (s *stateFiles) failed(err error) {
	if err != nil && !s.failing {
		s.log.Warn("this node cannot keep its state for a restart without the API server", "err", err)
	}
	s.failing = err != nil
}

// load reads the plan. It returns nil without a usable one.
func (s *stateFiles) load() *savedPlan {
	if s == nil {
		return nil
	}
	var p savedPlan
	if !s.read(planFile, &p) {
		return nil
	}
	s.mu.Lock()
	s.hasTunnels = true
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
	s.key, s.keyWritten, s.hasTunnels = k.Private, true, true
	s.mu.Unlock()
	return k.Private
}

func (s *stateFiles) Save(key []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bytes.Equal(key, s.key) {
		s.key, s.keyWritten = bytes.Clone(key), false
	}
	if !s.hasTunnels || s.keyWritten {
		return nil
	}
	err := s.writeKey()
	s.failed(err)
	return err
}

// writeKey writes the key, if its file has another one. If that fails it removes the file: the key there is
// not in use any more, and may have been replaced because it leaked. The caller has the lock.
func (s *stateFiles) writeKey() error {
	if s.keyWritten || s.key == nil {
		return nil
	}
	b, err := encodeState(s.of, savedKey{s.key})
	if err == nil {
		err = s.write(keyFile, b)
	}
	if s.keyWritten = err == nil; err != nil {
		err = errors.Join(err, ignoreMissing(os.Remove(filepath.Join(s.directory, keyFile))))
	}
	return err
}

// offer schedules the writing of a plan. A newer one replaces it.
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

// stale reports whether the API server answered so long after the saved plan that the plan has to be
// written again, though only the time changed.
func (s *stateFiles) stale(confirmed time.Time) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasTunnels && confirmed.Sub(s.confirmed) >= savedAgain
}

// run writes the plans that are offered, until ctx ends.
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

// keep writes a plan and the key, unless the files have them already. A plan without tunnels removes all files.
func (s *stateFiles) keep(p *savedPlan) {
	if len(p.Tunnels) == 0 {
		s.remove()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hasTunnels = true
	confirmed := p.Confirmed
	p.Confirmed = time.Time{}
	bare, err := encodeState(s.of, p)
	sum := sha256.Sum256(bare)
	if err == nil && sum == s.sum && confirmed.Sub(s.confirmed) < savedAgain {
		s.failed(s.writeKey())
		return
	}
	var b []byte
	if err == nil {
		p.Confirmed = confirmed
		b, err = encodeState(s.of, p)
	}
	if err == nil {
		err = s.writeKey()
	}
	if err == nil {
		err = s.write(planFile, b)
	}
	if err != nil {
		// The file is outdated.
		s.sum, s.confirmed = [sha256.Size]byte{}, time.Time{}
		err = errors.Join(err, ignoreMissing(os.Remove(filepath.Join(s.directory, planFile))))
	} else {
		s.sum, s.confirmed = sum, confirmed
	}
	s.failed(err)
}

// remove removes the saved state.
func (s *stateFiles) remove() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hasTunnels, s.keyWritten, s.sum, s.confirmed = false, false, [sha256.Size]byte{}, time.Time{}
	s.failed(RemoveState(s.directory))
}

// RemoveState removes the saved state of a node, and temporary files of a process that was killed while
// it wrote.
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
