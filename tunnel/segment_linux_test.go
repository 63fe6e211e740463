package tunnel

import "golang.org/x/sys/unix"

func maxSegment(fd int) (int, error) {
	return unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
}
