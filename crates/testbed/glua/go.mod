// Pins gopher-lua, the interpreter in which Argo CD runs health scripts.
// To move to another release: change the version, run `go mod tidy`, commit both files.
module runway-testbed/glua

go 1.26.0

tool github.com/yuin/gopher-lua/cmd/glua

require (
	github.com/chzyer/readline v0.0.0-20180603132655-2972be24d48e // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	golang.org/x/sys v0.0.0-20190204203706-41f3e6584952 // indirect
)
