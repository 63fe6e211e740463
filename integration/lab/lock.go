//go:build unix

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/entente-dev/entente/integration/eventually"
)

// lockName is the lock of what all labs of a machine share.
const lockName = ".lock"

// lockFile waits for an exclusive lock on a file, which it makes. The lock ends with the process, too. The
// holder may remove the file. If another process holds it, waits is called once.
func lockFile(ctx context.Context, name string, waits func()) (unlock func(), err error) {
	waits = sync.OnceFunc(waits)
	var held *os.File
	var failed error
	err = eventually.Poll(ctx, 50*time.Millisecond, func() bool {
		if held, failed = tryLock(name); held == nil && failed == nil {
			waits()
			return false
		}
		return true
	})
	if err := errors.Join(failed, err); err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { _ = held.Close() }, nil
}

// tryLock returns nil if another process has the lock.
func tryLock(name string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if os.IsNotExist(err) {
		return nil, nil //nolint:nilnil // the folder was just removed: no lock yet
	}
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
			return nil, nil //nolint:nilnil // as documented
		}
		return nil, err
	}
	// The file may have been removed by its last holder: a lock on that is
	// none.
	is, err := f.Stat()
	there, errThere := os.Stat(name)
	if err != nil || errThere != nil || !os.SameFile(is, there) {
		_ = f.Close()
		return nil, nil //nolint:nilnil,nilerr // the process that removed it gives way to the next try
	}
	return f, nil
}
