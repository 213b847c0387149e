module testbench;
  reg clk = 0, rst = 0;
  reg [{ins}:0] in = 0;
  wire [{outs}:0] out;
  integer cycles = 0, errors = 0;
  {name} dut (.clk(clk), .rst(rst), {pins});

  task step(input [{ins}:0] given, input [{outs}:0] expected, input [{outs}:0] care);
    begin
      in = given;
      #1;
      if (((out ^ expected) & care) !== 0) begin
        errors = errors + 1;
        if (errors == 1) $display("cycle %0d: found %h, expected %h, of %h", cycles, out, expected, care);
      end
      cycles = cycles + 1;
      clk = 1;
      #1 clk = 0;
    end
  endtask

  task reset;
    begin
      rst = 1;
      #1 clk = 1;
      #1 clk = 0;
      rst = 0;
    end
  endtask

  initial begin
{steps}
    $display("{name}: %0d cycles, %0d differ", cycles, errors);
    $finish;
  end
endmodule
