package exit

// MaxNear is how many names an error suggests.
const MaxNear = 3
