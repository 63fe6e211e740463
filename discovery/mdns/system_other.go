//go:build !linux

package mdns

import (
	"errors"
	"os"
	"syscall"

	"github.com/entente-dev/entente/internal/notify"
)

func sharePort(_, _ string, _ syscall.RawConn) error { return nil }

func portShared(int) bool { return true }

func openWatch() (*os.File, error) { return nil, errors.ErrUnsupported }

func watch(*os.File, notify.Channel) error { return errors.ErrUnsupported }
