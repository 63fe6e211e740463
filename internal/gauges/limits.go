package gauges

import "time"

// readTimeout bounds one read of the cache, which does not exist at the very start.
const readTimeout = time.Second
